"""Sources of weights: a path, an address, a file on a hub, or a name from the list, fetched if it is not on this node.

Only weights named by a recipe or a user are fetched, and none with `PHALANX_OFFLINE=1`.
"""

import hashlib
import json
import os
import re
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from phalanx.config.read import did_you_mean
from phalanx.system.buckets import refuse_secrets
from phalanx.system.disk import user_caches, write_atomically
from phalanx.system.paths import parse_path
from phalanx.weights.archives import SUFFIXES
from phalanx.weights.fetching import SILENCE, FetchedFile, FetchError, check_address, fetch, find_fetched
from phalanx.weights.packages import find_packaged
from phalanx.weights.published import PUBLISHED, entry_of

HUB = 'https://huggingface.co'
HUB_FILE = re.compile(r'hf://(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[^/]+))?(/(?P<file>.+))?')
FRAGMENT = re.compile(r'^(.*?)#((?:file|sha256|key)=.*)$')


class NotFoundError(FetchError):
    """A source that is not a file, a folder or a name in the list."""


@dataclass(frozen=True)
class FoundWeights:
    """Weights on this node."""

    source: str  # as named by the recipe or the user
    path: Path  # file, or folder of a run or checkpoint
    member: str | None = None  # file inside an archive
    key: str | None = None  # entry of the file
    fetched: FetchedFile | None = None  # for weights from the network
    licence: str | None = None
    part: Literal['all', 'backbone'] = 'all'  # part of a network that the file holds

    def facts(self) -> dict[str, str | int | None]:
        """Origin of the weights, for reports."""
        facts: dict[str, str | int | None] = {'from': self.source}
        if self.fetched is not None:
            file = self.fetched
            facts |= {'address': file.address, 'sha256': file.sha256, 'bytes': file.size, 'fetched_at': file.fetched_at}
            facts['licence'] = self.licence or 'not known'
        return facts


def is_remote(source: str) -> bool:
    """True if `source` may have to be fetched."""
    # A file of that name on this node comes first.
    place, _ = _split(source)
    here = _find_local(place) or find_packaged(place)
    return here is None and (place in PUBLISHED or place.startswith(('https://', 'http://', 'hf://')))


def find(source: str | Path) -> FoundWeights:
    """Find the weights of `source`: a path, `https://...`, `hf://OWNER/REPO[@REVISION][/FILE]`, or a name of the list.

    Options may follow: `#sha256=HEX`, the checksum of the file; `#file=NAME`, a file inside an archive; `#key=NAME`, an entry
    of the file. Raises FetchError and NotFoundError.
    """
    text = refuse_secrets(str(source))
    place, options = _split(text)
    member, key, sha256 = (options.get(option) for option in ('file', 'key', 'sha256'))
    # A file on this node always wins: it works offline, and its name may be that of published weights.
    if (path := _find_local(place)) is not None:
        return FoundWeights(text, path, member, key)
    if place.startswith('hf://'):
        return replace(_fetch_from_hub(place, sha256, member), key=key)
    # A name from the list, of an installed package if possible, or an address; both are cached by address.
    entry = entry_of(place)
    if entry is not None and sha256 is None and (path := find_packaged(place)):
        return FoundWeights(text, path, member, key, licence=entry.licence, part=entry.part)
    if entry is not None or place.startswith(('https://', 'http://')):
        address = entry.address if entry else place
        check_address(address, sha256)
        checksum = sha256 or (entry.sha256 if entry else None)
        file = _find_cached(place, address) or fetch(address, folder_of(address), sha256=checksum)
        return FoundWeights(
            text, file.path, member, key, file, entry.licence if entry else None, entry.part if entry else 'all'
        )
    raise NotFoundError(
        f'{text}: there is no such file, run folder or name of published weights{did_you_mean(place, PUBLISHED)} '
        '(`phalanx weights` lists the names)'
    )


def cache_folder() -> Path:
    """Folder of fetched weights: below PHALANX_CACHE, or in the cache folder of the user."""
    named = os.environ.get('PHALANX_CACHE')
    return (Path(named).expanduser() if named else user_caches() / 'phalanx') / 'weights'


def folder_of(source: str) -> Path:
    """Folder in the cache for `source`, which may not exist yet."""
    # Readable, and unique by a digest of the whole address.
    name = re.sub(r'[^\w.+-]', '_', source.rstrip('/').rpartition('/')[2])[:80]
    return cache_folder() / f'{name}-{hashlib.sha256(source.encode()).hexdigest()[:8]}'


def is_offline() -> bool:
    return os.environ.get('PHALANX_OFFLINE', '').lower() not in ('', '0', 'false', 'no')


def _split(source: str) -> tuple[str, dict[str, str]]:
    """Split `source` into the place and its options: `a.tar#file=b.pth` -> `a.tar`, {'file': 'b.pth'}."""
    # `#` may occur in paths: only known options after it count.
    fragment = FRAGMENT.match(source)
    if fragment is None:
        return source, {}
    return fragment[1], dict(part.partition('=')[::2] for part in fragment[2].split('&'))


def _find_local(place: str) -> Path | None:
    """Existing path for `place`, also without the suffix `.pdparams`, as in the Paddle projects; else None."""
    if '://' in place:
        return None
    # Paddle's projects name weights without their suffix.
    path = parse_path(place)
    paths = (path, path.with_name(f'{path.name}.pdparams')) if path.name else (path,)
    return next((path for path in paths if path.exists()), None)


def _find_cached(source: str, address: str) -> FetchedFile | None:
    """File fetched earlier; None if it must be fetched. Raises FetchError if that is not allowed (offline)."""
    file = find_fetched(folder_of(address))
    if file is None and is_offline():
        raise FetchError(
            f'{source}: is not on this node, and nothing is fetched offline (--offline, PHALANX_OFFLINE=1); '
            f'`phalanx weights get {source}` fetches it where there is a network; copy it from there to {folder_of(address)}'
        )
    return file


def _fetch_from_hub(place: str, sha256: str | None, member: str | None) -> FoundWeights:
    """Fetch a file of a repository on the hub; its revision is resolved to a commit at the first fetch."""
    match = HUB_FILE.fullmatch(place)
    if match is None:
        raise FetchError(f'{place}: expected hf://OWNER/REPO, hf://OWNER/REPO/FILE or hf://OWNER/REPO@REVISION/FILE')
    folder = folder_of(place)
    known = folder / 'hub.json'
    file = _find_cached(place, place)
    # The hub resolves a branch to a commit, and knows the sha256 of large files.
    if file is None:
        endpoint = os.environ.get('HF_ENDPOINT', HUB).rstrip('/')
        token = os.environ.get('HF_TOKEN')
        headers = {'Authorization': f'Bearer {token}'} if token else {}
        facts = _hub_facts(endpoint, match['repo'], match['revision'] or 'main', headers)
        files = {entry['rfilename']: entry for entry in facts.get('siblings', [])}
        name = _hub_file(place, match['file'], list(files))
        address = f'{endpoint}/{match["repo"]}/resolve/{facts.get("sha", "main")}/{quote(name)}'
        stored = (files[name].get('lfs') or {}).get('sha256')
        file = fetch(address, folder, sha256=sha256 or stored, headers=headers)
        licence = (facts.get('cardData') or {}).get('license')
        write_atomically(known, json.dumps({'licence': licence}).encode())
    licence = json.loads(known.read_text()).get('licence') if known.is_file() else None
    return FoundWeights(place, file.path, member, None, file, licence)


def _hub_facts(endpoint: str, repo: str, revision: str, headers: dict[str, str]) -> dict[str, Any]:
    """Query the hub for a revision: its commit, its files with their sha256, its licence. Raises FetchError."""
    address = f'{endpoint}/api/models/{repo}/revision/{quote(revision, safe="")}?blobs=true'
    check_address(address, None)
    request = urllib.request.Request(address)
    for name, value in headers.items():
        request.add_unredirected_header(name, value)
    try:
        with urllib.request.urlopen(request, timeout=SILENCE) as response:
            return dict(json.loads(response.read()))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (401, 403, 404):  # the hub also answers 401 for repositories that do not exist
            cure = 'does it exist? is it private or gated? set a token in HF_TOKEN'
            raise FetchError(f'hf://{repo}@{revision}: the hub answers {error.code}: {cure}') from None
        raise FetchError(f'hf://{repo}@{revision}: the hub {urlsplit(endpoint).hostname} answers {error.code}') from None
    except (OSError, ValueError, TypeError) as error:
        raise FetchError(f'hf://{repo}@{revision}: {endpoint} cannot be reached: {error}; HF_ENDPOINT names a mirror') from None


def _hub_file(place: str, file: str | None, files: list[str]) -> str:
    """File of a repository to fetch: the named one, or the only weight file. Raises FetchError."""
    if file is not None:
        if file not in files:
            raise FetchError(f'{place}: there is no such file{did_you_mean(file, files)}; it has {", ".join(files[:20])}')
        return file
    for suffix in SUFFIXES:
        matches = [name for name in files if name.endswith(suffix)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise FetchError(f'{place}: has several files of weights, name one: {", ".join(matches[:20])}')
    raise FetchError(f'{place}: has no file of weights ({", ".join(SUFFIXES)}); it has {", ".join(files[:20])}')
