"""Writes Perfetto's protobuf, for https://ui.perfetto.dev and its trace processor.

Every track of `tracks.py` is a track of its group. Names, categories and texts are interned: each is written once.
The trace's clock is the run's, CLOCK_MONOTONIC; a snapshot ties it to the time of day.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from handheld.analyse.run import Run
from handheld.export.tracks import Args, CounterTrack, Mark, Slice, Tracks, tracks
from handheld.export.write import needed, write_file

_SEQUENCE = 1
_ROOT = 1  # the id of the track that all others are below


def write(run: Run, out: Path) -> list[Path]:
    """Write the trace into the file `out`."""
    protos = needed("perfetto.protos.perfetto.trace.perfetto_trace_pb2", "perfetto")
    builders = needed("perfetto.trace_builder.proto_builder", "perfetto")
    all_tracks = tracks(run)

    def fill(file: BinaryIO) -> None:
        _Writer(protos, builders.StreamingTraceProtoBuilder(file)).write(all_tracks)

    return [write_file(out, fill)]


class _Writer:
    """One sequence of packets."""

    def __init__(self, protos: ModuleType, builder: Any) -> None:
        self._protos, self._builder = protos, builder
        self._flags = protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED  # of the first packet
        self._iids: dict[str, dict[str, int]] = {}
        self._groups: dict[str, int] = {}
        self._tracks = _ROOT

    def write(self, all_tracks: Tracks) -> None:
        self._begin(all_tracks)
        for slices in all_tracks.slices:
            uuid = self._track(slices.group, slices.name)
            for one in slices.slices:
                self._slice(one, uuid)
        for counter in all_tracks.counters:
            self._counter(counter)
        notes = self._track("notes", "notes") if all_tracks.marks else 0
        for mark in all_tracks.marks:
            self._mark(mark, notes)

    # ── packets ───────────────────────────────────────────────────────────────────────────────

    def _new(self) -> Any:
        packet = self._builder.create_packet()
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = self._flags
        self._flags = self._protos.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        return packet

    def _begin(self, all_tracks: Tracks) -> None:
        """The clock, the root track, and the facts of the run as a mark."""
        packet, monotonic = self._new(), self._protos.BUILTIN_CLOCK_MONOTONIC
        packet.clock_snapshot.primary_trace_clock = monotonic
        packet.clock_snapshot.clocks.add(clock_id=monotonic, timestamp=all_tracks.begin_ns)
        if all_tracks.begin_unix_ns is not None:
            packet.clock_snapshot.clocks.add(
                clock_id=self._protos.BUILTIN_CLOCK_REALTIME, timestamp=all_tracks.begin_unix_ns
            )
        self._builder.write_packet(packet)
        packet = self._new()
        packet.track_descriptor.uuid, packet.track_descriptor.name = _ROOT, all_tracks.title
        packet.track_descriptor.child_ordering = self._protos.TrackDescriptor.EXPLICIT
        self._builder.write_packet(packet)
        self._mark(Mark(all_tracks.begin_ns, "run", all_tracks.facts), self._track("run", "facts"))

    def _track(self, group: str, name: str, unit: str | None = None) -> int:
        """The id of a new track in a group; the group is made when it is first named."""
        if group not in self._groups:
            self._groups[group] = self._describe(group, _ROOT, rank=len(self._groups))
        return self._describe(name, self._groups[group], unit=unit)

    def _describe(self, name: str, parent: int, rank: int | None = None, unit: str | None = None) -> int:
        self._tracks += 1
        packet = self._new()
        track = packet.track_descriptor
        track.uuid, track.name, track.parent_uuid = self._tracks, name, parent
        if rank is not None:
            track.sibling_order_rank = rank
        if unit is not None:
            track.counter.unit_name = unit
        self._builder.write_packet(packet)
        return self._tracks

    # ── events ────────────────────────────────────────────────────────────────────────────────

    def _slice(self, one: Slice, uuid: int) -> None:
        packet = self._at(one.begin_ns, self._protos.TrackEvent.TYPE_SLICE_BEGIN, uuid)
        packet.track_event.name_iid = self._intern(packet, "event_names", one.name)
        packet.track_event.category_iids.append(self._intern(packet, "event_categories", one.category))
        self._annotate(packet, one.args)
        self._builder.write_packet(packet)
        for child in one.children:
            self._slice(child, uuid)
        self._builder.write_packet(self._at(one.end_ns, self._protos.TrackEvent.TYPE_SLICE_END, uuid))

    def _counter(self, track: CounterTrack) -> None:
        uuid = self._track(track.group, track.name, track.unit)
        for t_ns, value in zip(track.t_ns.tolist(), track.values.tolist(), strict=True):
            packet = self._at(t_ns, self._protos.TrackEvent.TYPE_COUNTER, uuid)
            packet.track_event.double_counter_value = value
            self._builder.write_packet(packet)

    def _mark(self, mark: Mark, uuid: int) -> None:
        packet = self._at(mark.t_ns, self._protos.TrackEvent.TYPE_INSTANT, uuid)
        packet.track_event.name_iid = self._intern(packet, "event_names", mark.name)
        self._annotate(packet, mark.args)
        self._builder.write_packet(packet)

    def _at(self, t_ns: int, kind: int, uuid: int) -> Any:
        packet = self._new()
        packet.timestamp = t_ns
        packet.track_event.type, packet.track_event.track_uuid = kind, uuid
        return packet

    def _annotate(self, packet: Any, args: Args) -> None:
        for name, value in args.items():
            note = packet.track_event.debug_annotations.add()
            note.name_iid = self._intern(packet, "debug_annotation_names", name)
            if isinstance(value, str):
                note.string_value_iid = self._intern(packet, "debug_annotation_string_values", value)
            elif isinstance(value, int):
                note.int_value = value
            else:
                note.double_value = value

    def _intern(self, packet: Any, table: str, text: str) -> int:
        """The number of a text. The packet that first uses it also defines it."""
        iids = self._iids.setdefault(table, {})
        if text not in iids:
            iids[text] = len(iids) + 1
            entry = getattr(packet.interned_data, table).add()
            entry.iid = iids[text]
            if table == "debug_annotation_string_values":
                entry.str = text.encode()
            else:
                entry.name = text
        return iids[text]
