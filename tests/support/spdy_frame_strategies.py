"""Hypothesis strategies for SPDY frames, and their encoding."""

from hypothesis import strategies as st

from winpod.cri.streaming import spdy_frames as frames

stream_ids = st.integers(1, frames.MAX_STREAM_ID)
words = st.text(st.characters(max_codepoint=127), max_size=20)
header_maps = st.dictionaries(words, words, max_size=5)


def frame_values(ids: st.SearchStrategy[int] = stream_ids) -> st.SearchStrategy[frames.Frame]:
    return st.one_of(
        st.builds(frames.SynStream, ids, header_maps, st.booleans()),
        st.builds(frames.SynReply, ids, header_maps),
        st.builds(frames.Data, ids, st.binary(max_size=300), st.booleans()),
        st.builds(frames.RstStream, ids, st.sampled_from(frames.ResetStatus)),
        st.builds(frames.Settings, st.dictionaries(st.integers(1, 8), st.integers(0, 2**32 - 1))),
        st.builds(frames.Ping, st.integers(0, 2**32 - 1)),
        st.builds(
            frames.GoAway,
            st.integers(0, frames.MAX_STREAM_ID),
            st.sampled_from(frames.GoAwayStatus),
        ),
        st.builds(frames.WindowUpdate, st.integers(0, 9), st.integers(0, frames.MAX_WINDOW)),
    )


def encoded(writer: frames.FrameWriter, frame: frames.Frame) -> bytes:
    match frame:
        case frames.SynStream():
            return writer.syn_stream(frame.stream_id, frame.headers, fin=frame.fin)
        case frames.SynReply():
            return writer.syn_reply(frame.stream_id, frame.headers)
        case frames.Data():
            head = frames.data_frame_header(frame.stream_id, len(frame.data), fin=frame.fin)
            return head + frame.data
        case frames.RstStream():
            return frames.rst_stream(frame.stream_id, frames.ResetStatus(frame.status))
        case frames.Settings():
            return frames.settings(frame.values)
        case frames.Ping():
            return frames.ping(frame.ping_id)
        case frames.GoAway():
            return frames.goaway(frame.last_stream_id, frames.GoAwayStatus(frame.status))
        case frames.WindowUpdate():
            return frames.window_update(frame.stream_id, frame.delta)
        case frames.Headers():
            raise AssertionError("never sent")
