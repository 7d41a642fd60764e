"""The demo: a pipeline over an embedded Kinesis that proves its own output. ``python -m integration.demo``"""
