"""HDFS as a place of input and output: by its own protocols (`dlapp.hadoop.hdfs`) where they serve, by WebHDFS where
they do not. What is common to all file systems is one level up, and protocols and tokens are of `dlapp.hadoop`.
"""
