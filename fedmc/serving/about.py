"""What `/v1/health` says."""

from __future__ import annotations

from datetime import UTC, datetime

from fedmc import __version__
from fedmc.serving import schema
from fedmc.serving.answers import Served
from fedmc.serving.holder import Holder


def health_of(holder: Holder) -> schema.Health:
    refused, about = holder.refused, about_of(holder.current)
    if refused is None:
        return schema.Health(status="ok", version=__version__, model=about)
    told = schema.Refused(when=_utc(refused.when), why=refused.why)
    return schema.Health(status="old", version=__version__, model=about, refused=told)


def about_of(served: Served) -> schema.About:
    model = served.model
    return schema.About(
        hash=served.hash, name=served.name, loaded=_utc(served.loaded), preset=model.settings.preset_name,
        rank=model.settings.rank, users=len(model.users), items=len(model.items), titles=model.titles is not None,
        intervals=model.posterior is not None, events=served.of_events, rating_range=model.rating_range,
    )  # fmt: skip


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
