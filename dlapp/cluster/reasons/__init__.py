"""Reasons for waits, the changes that end them, and estimates of starts: functions of facts, without I/O.

Engines collect the facts; both use the same functions, so that the same situation has the same code and the same words
everywhere. Nothing here sends a request or reads a clock.
"""
