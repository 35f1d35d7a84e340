"""Fixtures that several folders of tests share; the modules are in `helpers`."""

pytest_plugins = ["small_world"]
