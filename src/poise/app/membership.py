"""Which replicas the gateway has: what the configuration, the admin API and DNS say, brought about in the fleet."""

from collections.abc import Collection, Mapping, Sequence

import structlog

from poise.admin.control import NameTaken, NoSuchReplica
from poise.config.entry import read_replica
from poise.config.parts import replica_spec
from poise.core.errors import ConfigError
from poise.core.replica import ReplicaSpec, Source, TlsFiles
from poise.fleet.fleet import Fleet
from poise.fleet.reconcile import Action, Step, members, plan

log = structlog.get_logger()


class Membership:
    """The only caller of what changes the fleet's members. `addresses` are those of host names, kept by somebody else.

    Replicas of the configuration that the admin API removed stay away until the configuration says something else of
    them; what the admin API added stays until it removes it, or until the configuration has its name or address.
    """

    def __init__(
        self, fleet: Fleet, addresses: Mapping[str, Collection[str]], environment: Mapping[str, str] | None = None
    ) -> None:
        """`environment` holds the keys that the admin API may name; None if it may name none."""
        self._fleet = fleet
        self._addresses = addresses
        self._environment = environment
        self._configured: dict[str, ReplicaSpec] = {}
        self._added: dict[str, ReplicaSpec] = {}
        self._removed: set[str] = set()
        """Names that the configuration or DNS give, and the admin API took away."""
        self._drained: set[str] = set()
        self._tell = log.debug
        """What the gateway starts with is no news, all that comes later is."""

    @property
    def hosts(self) -> set[str]:
        """The hosts on which replicas are."""
        return {spec.address.host for spec in self._entries()}

    @property
    def tls_files(self) -> set[TlsFiles]:
        """The certificates that replicas are reached with."""
        return {files for spec in self._entries() if (files := spec.address.tls_files) is not None}

    def configure(self, specs: Sequence[ReplicaSpec]) -> None:
        """The configuration names these, and no others."""
        before, self._configured = self._configured, {spec.name: spec for spec in specs}
        changed = [spec for spec in specs if before.get(spec.name) != spec]
        self._removed.difference_update(spec.name for spec in changed)
        for spec in changed:
            for added in [added for added in self._added.values() if _clash(added, spec)]:
                log.warning("configuration takes the place of what was added", replica=added.name, by=spec.name)
                del self._added[added.name]
        self.reconcile()
        self._tell = log.info

    def reconcile(self) -> None:
        """Bring about what is wanted, whatever was missed before."""
        families = {spec.name: [m.name for m in members(spec, self._addresses)] for spec in self._entries()}
        names = {name for family, members in families.items() for name in (family, *members)} | self._configured.keys()
        self._removed &= names
        self._drained &= names
        drained = {name for family, members in families.items() for name in members if {family, name} & self._drained}
        wanted = self._wanted()
        for action in plan(wanted, drained, self._fleet):
            self._take(action)
        for name, spec in wanted.items():
            self._fleet.locate(name, () if spec.address.ip else tuple(self._addresses.get(spec.address.host, ())))

    # -- the admin API

    def add(self, entry: object) -> str:
        """See `poise.admin.control.Membership`."""
        section = read_replica(entry)
        if section.api_key_env is not None and self._environment is None:
            raise ConfigError(
                "api_key_env can be given here only if the admin port asks for a key: it sends a secret to any address",
                hint="set admin.key_env, or put the replica into the configuration file",
            )
        section = section.model_copy(update={"name": section.name or self._free_name()})
        spec = replica_spec(section, Source.ADMIN, self._environment or {})
        for other in [*self._entries(), *self._wanted().values()]:
            if _clash(spec, other):
                what = f"named {spec.name!r}" if spec.name == other.name else f"at {spec.address.url}"
                raise NameTaken(f"there is a replica {what} already", hint="remove it first, or give another")
        self._added[spec.name] = spec
        self.reconcile()
        return spec.name

    def remove(self, name: str) -> None:
        """See `poise.admin.control.Membership`."""
        self._check_known(name)
        if self._added.pop(name, None) is None:
            self._removed.add(name)
        self._drained.discard(name)
        self.reconcile()

    def drain(self, name: str) -> None:
        """See `poise.admin.control.Membership`."""
        self._check_known(name)
        self._drained.add(name)
        self.reconcile()

    def resume(self, name: str) -> None:
        """See `poise.admin.control.Membership`."""
        self._check_known(name)
        self._drained.discard(name)
        self.reconcile()

    # -- what is wanted

    def _entries(self) -> list[ReplicaSpec]:
        configured = [spec for spec in self._configured.values() if spec.name not in self._removed]
        return [*configured, *self._added.values()]

    def _wanted(self) -> dict[str, ReplicaSpec]:
        everyone = [member for spec in self._entries() for member in members(spec, self._addresses)]
        return {spec.name: spec for spec in everyone if spec.source is Source.ADMIN or spec.name not in self._removed}

    def _check_known(self, name: str) -> None:
        if name not in {spec.name for spec in self._entries()} | self._wanted().keys():
            raise NoSuchReplica(f"there is no replica named {name!r}", hint="GET /api/fleet lists them")

    def _free_name(self) -> str:
        taken = self._configured.keys() | self._added.keys()
        return next(name for number in range(1, len(taken) + 2) if (name := f"a{number}") not in taken)

    def _take(self, action: Action) -> None:
        step, spec = action.step, action.spec
        if step is Step.LEAVE:
            self._fleet.leave(spec.name)
        elif step is Step.JOIN:
            self._fleet.join(spec)
        elif step is Step.CHANGE:
            self._fleet.change(spec)
        elif step is Step.DRAIN:
            self._fleet.drain(spec.name)
        else:
            self._fleet.resume(spec.name)
        self._tell(f"replica {step}", replica=spec.name, url=spec.address.url, source=str(spec.source))


def _clash(one: ReplicaSpec, other: ReplicaSpec) -> bool:
    return one.name == other.name or one.address.url == other.address.url
