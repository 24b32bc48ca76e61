"""Names of nodes and their addresses, with the pitfalls of cluster resolvers."""

import contextlib
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

START_PORT = 6170  # default of PaddlePaddle; further ports count up from it
LOOKUP = 2  # seconds for a reverse lookup: a working resolver answers within them
REMIND = 10  # seconds between two lines about a name without an address
Addresses = Mapping[str, str]  # of this node: address -> network interface


def split_list(text: str) -> list[str]:
    """`a, b,` -> a, b."""
    return [part.strip() for part in text.split(',') if part.strip()]


def split_nodes(text: str) -> list[str]:
    """Names and addresses of the nodes in a list. Raises ValueError for one with a port, or without its comma."""
    names = split_list(text)
    if wrong := [name for name in names if ' ' in name or name.startswith('[') or name.count(':') == 1]:
        raise ValueError(f'--ips {text}: {wrong[0]!r} is no name or address; commas separate nodes, --start_port sets the port')
    return names


def parse_nodes(text: str, where: str) -> tuple[int, int]:
    """Least and largest number of nodes in `2` or `2:4`. Raises ValueError that begins with `where`."""
    found = re.fullmatch(r'(\d{1,9})(?::(\d{1,9}))?', text)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most:
        raise ValueError(f'{where}: expected a number of nodes such as 2, or MIN:MAX such as 2:4')
    return least, most


def read_hostfile(file: Path) -> list[str]:
    """Nodes that begin the lines of a hostfile, each once: some have a line for each slot of a node.

    Raises OSError or UnicodeDecodeError.
    """
    lines = [line.partition('#')[0].split() for line in file.read_text(encoding='utf-8-sig').splitlines()]
    return list(dict.fromkeys(words[0] for words in lines if words))


def is_loopback(name: str) -> bool:
    """True for loopback names and addresses, which mean this node on every node."""
    return name == '::1' or name.lower() == 'localhost' or name.startswith('127.')


def resolve(name: str, patience: float = 0) -> list[str]:
    """IP addresses of a name, IPv4 first. Waits up to `patience` seconds for the first one. Raises ValueError."""
    begun = time.monotonic()
    reminded = begun - REMIND
    while True:
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            addresses = dict.fromkeys(str(entry[4][0]) for entry in found)
            return sorted(addresses, key=lambda address: (':' in address, is_loopback(address)))
        except (OSError, UnicodeError) as error:
            why = getattr(error, 'strerror', None) or str(error)
            if isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN:
                why = 'no name server gave an answer; see /etc/resolv.conf, or add the name to /etc/hosts'
        now = time.monotonic()
        if now - begun >= patience:
            waited = f'; gave up after {patience:.0f} s' if patience else ''
            raise ValueError(f'{name}: this node cannot resolve the name ({why}){waited}')
        if now - reminded >= REMIND:
            reminded = now
            print(f'phalanx: {name}: the name has no address yet ({why}); still trying', file=sys.stderr, flush=True)
        time.sleep(0.5)


def is_same_node(one: str, other: str) -> bool:
    """True if two names share an address, as far as this node can resolve them."""
    if one.lower() == other.lower():
        return True
    try:
        return bool(set(resolve(one)) & set(resolve(other)))
    except ValueError:
        return False


def resolve_all(names: Sequence[str], patience: float = 0) -> list[str]:
    """One address per name, all of the same family: IPv4 if every node has it, else IPv6. Raises ValueError.

    Debian maps the own name of a node to 127.0.1.1, useless to other nodes: it is replaced by the address from which this
    node reaches them.
    """
    answers = [resolve(name, patience) for name in names]
    outside = [[address for address in found if not is_loopback(address)] for found in answers]
    mine = [not left and not is_loopback(name) for name, left in zip(names, outside, strict=True)]
    for family in ('.', ':'):
        chosen = [next((address for address in left if family in address), None) for left in outside]
        others = [address for address in chosen if address is not None]
        if any(address is None and left for address, left in zip(chosen, outside, strict=True)):
            continue
        if any(mine) and others:
            here = local_address_to(others[0])
            chosen = [here if is_mine else address for address, is_mine in zip(chosen, mine, strict=True)]
        return [address or found[0] for address, found in zip(chosen, answers, strict=True)]
    shown = '; '.join(f'{name}: {", ".join(left)}' for name, left in zip(names, outside, strict=True))
    raise ValueError(f'no address family (IPv4, IPv6) is common to all nodes ({shown}): give addresses instead of names')


def shorten_silent_lookups(address: str) -> bool:
    """True if no name server answers a reverse lookup of `address`; lookups of this process then time out sooner.

    torch's stores look up the name of each address that they connect to, for their log; this cannot be turned off.
    """
    asked = threading.Thread(target=_reverse_lookup, args=(address,), name='reverse lookup', daemon=True)
    asked.start()
    asked.join(LOOKUP)
    if asked.is_alive():
        os.environ.setdefault('RES_OPTIONS', 'timeout:1 attempts:1')
    return asked.is_alive()


def _reverse_lookup(address: str) -> None:
    # torch's sockets are of IPv6, where an IPv4 address is mapped: /etc/hosts has no such entry, so a name server is asked even
    # for nodes that are listed there.
    with contextlib.suppress(OSError):
        socket.getnameinfo((address if ':' in address else f'::ffff:{address}', START_PORT), 0)


def local_address_to(address: str) -> str:
    """Address from which this node reaches another one; sends nothing. Raises ValueError without a route."""
    family = socket.AF_INET6 if ':' in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, START_PORT))
        except OSError as error:
            raise ValueError(f'{address}: no route from this node ({error.strerror})') from None
        return str(probe.getsockname()[0])


def outward_address(own: Addresses) -> str:
    """Address of this node on its default route, or else its first IPv4 address that is no loopback. Raises ValueError."""
    try:
        found = local_address_to('192.0.2.1')  # a network reserved for documentation
    except ValueError:
        found = next((address for address in own if not is_loopback(address) and '.' in address), '')
    if not found or is_loopback(found):
        raise ValueError('this node has only loopback addresses: give --host with the address by which other nodes reach it')
    return found
