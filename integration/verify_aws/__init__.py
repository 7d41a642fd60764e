"""A check of the whole project against a real AWS account: ``make verify-aws``."""
