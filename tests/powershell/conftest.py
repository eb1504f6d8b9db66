"""The endpoint of the tests of WinRM serves these tests too."""

from tests.winrm.conftest import place

__all__ = ["place"]
