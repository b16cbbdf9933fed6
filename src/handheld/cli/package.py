def package() -> None:
    """x"""
