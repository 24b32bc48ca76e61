"""Where weights are: a path, an address, a file of a hub, or a name from the list. What is not on this node is fetched.

Nothing is fetched but what a recipe or a person names, and nothing at all with `PHALANX_OFFLINE=1`.
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
from phalanx.system.disk import write_atomically
from phalanx.system.paths import parse_path
from phalanx.weights.archives import SUFFIXES
from phalanx.weights.fetching import SILENCE, FetchedFile, FetchError, check_address, fetch, find_fetched
from phalanx.weights.published import PUBLISHED, entry_of

HUB = 'https://huggingface.co'
HUB_FILE = re.compile(r'hf://(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[^/]+))?(/(?P<file>.+))?')
FRAGMENT = re.compile(r'^(.*?)#((?:file|sha256|key)=.*)$')


class NotFoundError(FetchError):
    """Weights that are named nowhere: no file, no folder, no name of the list."""


@dataclass(frozen=True)
class FoundWeights:
    """Weights on this node."""

    source: str  # as the recipe or the person named them
    path: Path  # a file, or the folder of a run or checkpoint
    member: str | None = None  # which file of an archive
    key: str | None = None  # which entry of the file
    fetched: FetchedFile | None = None  # when they came from the network
    licence: str | None = None
    part: Literal['all', 'backbone'] = 'all'  # what of a network it is known to hold

    def facts(self) -> dict[str, str | int | None]:
        """What a report says of them."""
        facts: dict[str, str | int | None] = {'from': self.source}
        if self.fetched is not None:
            there = self.fetched
            facts |= {'address': there.address, 'sha256': there.sha256, 'bytes': there.size, 'fetched_at': there.fetched_at}
            facts['licence'] = self.licence or 'not known'
        return facts


def is_remote(source: str) -> bool:
    """Whether `source` names something that may have to be fetched."""
    place, _ = _split(source)
    return _find_local(place) is None and (place in PUBLISHED or place.startswith(('https://', 'http://', 'hf://')))


def find(source: str | Path) -> FoundWeights:
    """The weights that `source` names: a path, `https://...`, `hf://OWNER/REPO[@REVISION][/FILE]`, or a name of the list.

    `#sha256=HEX` behind it says what the file must be, `#file=NAME` which file of an archive is meant, `#key=NAME` which
    entry of a file. Raises FetchError, and NotFoundError.
    """
    text = str(source)
    place, options = _split(text)
    member, key, sha256 = (options.get(option) for option in ('file', 'key', 'sha256'))
    if (path := _find_local(place)) is not None:
        return FoundWeights(text, path, member, key)
    if place.startswith('hf://'):
        return replace(_fetch_from_hub(place, sha256, member), key=key)
    entry = entry_of(place)
    if entry is not None or place.startswith(('https://', 'http://')):
        address = entry.address if entry else place
        check_address(address, sha256)
        there = _find_cached(place, address) or fetch(address, folder_of(address), sha256=sha256)
        return FoundWeights(
            text, there.path, member, key, there, entry.licence if entry else None, entry.part if entry else 'all'
        )
    raise NotFoundError(
        f'{text}: there is no such file, run folder or name of published weights{did_you_mean(place, PUBLISHED)} '
        '(`phalanx weights` lists the names)'
    )


def cache_folder() -> Path:
    """Where fetched weights are kept: below PHALANX_CACHE, or the user's folder for caches."""
    caches = Path(os.environ.get('XDG_CACHE_HOME') or '~/.cache') / 'phalanx'
    return Path(os.environ.get('PHALANX_CACHE') or caches).expanduser() / 'weights'


def folder_of(source: str) -> Path:
    """The folder in the cache for what `source` names, be it there or not."""
    name = re.sub(r'[^\w.+-]', '_', source.rstrip('/').rpartition('/')[2])[:80]
    return cache_folder() / f'{name}-{hashlib.sha256(source.encode()).hexdigest()[:8]}'


def is_offline() -> bool:
    return os.environ.get('PHALANX_OFFLINE', '').lower() not in ('', '0', 'false', 'no')


def _split(source: str) -> tuple[str, dict[str, str]]:
    """What `source` names, and the options behind it: `a.tar#file=b.pth` -> `a.tar`, {'file': 'b.pth'}."""
    fragment = FRAGMENT.match(source)
    if fragment is None:
        return source, {}
    return fragment[1], dict(part.partition('=')[::2] for part in fragment[2].split('&'))


def _find_local(place: str) -> Path | None:
    """The path that `place` is; Paddle's projects leave out the suffix of their files."""
    if '://' in place:
        return None
    path = parse_path(place)
    paths = (path, path.with_name(f'{path.name}.pdparams')) if path.name else (path,)
    return next((path for path in paths if path.exists()), None)


def _find_cached(source: str, address: str) -> FetchedFile | None:
    """What was fetched before, None when it is to be fetched now. Raises FetchError when it must not be."""
    there = find_fetched(folder_of(address))
    if there is None and is_offline():
        raise FetchError(
            f'{source}: is not on this node, and nothing is fetched offline (--offline, PHALANX_OFFLINE=1); '
            f'`phalanx weights get {source}` fetches it where there is a network; copy it from there to {folder_of(address)}'
        )
    return there


def _fetch_from_hub(place: str, sha256: str | None, member: str | None) -> FoundWeights:
    """A file of a repository on the hub, the revision settled to a commit when it is first fetched."""
    named = HUB_FILE.fullmatch(place)
    if named is None:
        raise FetchError(f'{place}: expected hf://OWNER/REPO, hf://OWNER/REPO/FILE or hf://OWNER/REPO@REVISION/FILE')
    folder = folder_of(place)
    known = folder / 'hub.json'
    there = _find_cached(place, place)
    if there is None:
        endpoint = os.environ.get('HF_ENDPOINT', HUB).rstrip('/')
        token = os.environ.get('HF_TOKEN')
        headers = {'Authorization': f'Bearer {token}'} if token else {}
        facts = _hub_facts(endpoint, named['repo'], named['revision'] or 'main', headers)
        files = {file['rfilename']: file for file in facts.get('siblings', [])}
        chosen = _hub_file(place, named['file'], list(files))
        address = f'{endpoint}/{named["repo"]}/resolve/{facts.get("sha", "main")}/{quote(chosen)}'
        stored = (files[chosen].get('lfs') or {}).get('sha256')
        there = fetch(address, folder, sha256=sha256 or stored, headers=headers)
        licence = (facts.get('cardData') or {}).get('license')
        write_atomically(known, json.dumps({'licence': licence}).encode())
    licence = json.loads(known.read_text()).get('licence') if known.is_file() else None
    return FoundWeights(place, there.path, member, None, there, licence)


def _hub_facts(endpoint: str, repo: str, revision: str, headers: dict[str, str]) -> dict[str, Any]:
    """What the hub says of a revision: its commit, its files with their sha256, its licence. Raises FetchError."""
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
        if error.code in (401, 403, 404):  # the hub says 401 of what does not exist, too
            cure = 'does it exist? is it private or gated? name a token in HF_TOKEN'
            raise FetchError(f'hf://{repo}@{revision}: the hub answers {error.code}: {cure}') from None
        raise FetchError(f'hf://{repo}@{revision}: the hub {urlsplit(endpoint).hostname} answers {error.code}') from None
    except (OSError, ValueError, TypeError) as error:
        raise FetchError(
            f'hf://{repo}@{revision}: {endpoint} cannot be asked: {error}; a mirror is named in HF_ENDPOINT'
        ) from None


def _hub_file(place: str, file: str | None, files: list[str]) -> str:
    """The file of a repository that is meant: the one that is named, or the only one of weights. Raises FetchError."""
    if file is not None:
        if file not in files:
            raise FetchError(f'{place}: there is no such file{did_you_mean(file, files)}; it has {", ".join(files[:20])}')
        return file
    for suffix in SUFFIXES:
        found = [name for name in files if name.endswith(suffix)]
        if len(found) == 1:
            return found[0]
        if found:
            raise FetchError(f'{place}: has several files of weights, name one: {", ".join(found[:20])}')
    raise FetchError(f'{place}: has no file of weights ({", ".join(SUFFIXES)}); it has {", ".join(files[:20])}')
