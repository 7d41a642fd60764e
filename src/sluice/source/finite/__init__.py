"""Sources of finite splits, such as files."""
