def train() -> None:
    """x"""
