"""Objects on the local S3 server of the tests."""

from __future__ import annotations

import boto3

from trainables.utils.s3 import split_s3_uri


def put_object(uri: str, content: bytes) -> None:
    """Store an object without the module under test."""
    bucket, key = split_s3_uri(uri)
    boto3.client("s3").put_object(Bucket=bucket, Key=key, Body=content)
