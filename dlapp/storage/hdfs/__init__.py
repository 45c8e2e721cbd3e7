"""HDFS for input and output: by its native protocols (`dlapp.hadoop.hdfs`) where possible, otherwise by WebHDFS. Code
common to all file systems is one level up; protocols and tokens are in `dlapp.hadoop`.
"""
