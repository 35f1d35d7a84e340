"""Who is calling: a key's name, or an address. What one caller may hold back from the others is counted by it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from starlette.types import Scope as AsgiScope

from genius.serve.keys import Scope


@dataclass(frozen=True, slots=True)
class Caller:
    """The one behind a request, once it is known what they may do."""

    name: str  # of the key; "anyone" on a server without keys
    scopes: tuple[Scope, ...]
    address: str
    keyed: bool  # False: told apart by the address alone

    @property
    def owner(self) -> str:
        """Whose share of the work this is."""
        return self.name if self.keyed else self.address


def address_of(host: str) -> str:
    """An address as one client: itself, or the network of an IPv6 address, of which everyone has a whole one."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def client_of(scope: AsgiScope) -> str:
    return address_of((scope.get("client") or ("", 0))[0])


def owner_of(scope: AsgiScope) -> str:
    """The caller's share of the work, known or not."""
    caller = scope.get("state", {}).get("caller")
    return caller.owner if isinstance(caller, Caller) else client_of(scope)
