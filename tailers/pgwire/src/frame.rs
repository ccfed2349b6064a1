//! Frames: one tag byte, a length of four bytes (big-endian, counts itself), a body. Pure.
//!
//! A length is checked against the cap before a byte of room is made for it.

use bytes::{Buf, Bytes, BytesMut};

use crate::{Error, Result};

/// Largest body before the server has let us in: nobody proved anything yet.
pub(crate) const CAP_BEFORE_SIGN_IN: usize = 64 << 10;
/// Largest body afterwards. The server sends log in messages of 16 pages, and a page of log has at most
/// 64 KiB; base backups use 32 KiB.
pub(crate) const CAP: usize = 2 << 20;

/// A tag and its body, sharing the read buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub tag: u8,
    pub body: Bytes,
}

const HEADER: usize = 5;

/// The length of the first frame with its header, once the header is there.
fn whole(buffer: &BytesMut, cap: usize) -> Result<Option<usize>> {
    let Some(&[tag, a, b, c, d]) = buffer.first_chunk::<HEADER>() else { return Ok(None) };
    let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    if length < 4 || length - 4 > cap {
        return Err(Error::protocol(format!(
            "a message of kind {:?} claims {length} bytes, at most {cap} are allowed here",
            char::from(tag)
        )));
    }
    Ok(Some(length + 1))
}

/// Takes the first frame when it is complete.
pub(crate) fn take(buffer: &mut BytesMut, cap: usize) -> Result<Option<Frame>> {
    let Some(whole) = whole(buffer, cap)? else { return Ok(None) };
    if buffer.len() < whole {
        return Ok(None);
    }
    let mut frame = buffer.split_to(whole).freeze();
    let tag = frame.first().copied().unwrap_or(0);
    frame.advance(HEADER);
    Ok(Some(Frame { tag, body: frame }))
}

/// How many bytes the first frame still lacks; zero when its header is not there yet.
pub(crate) fn missing(buffer: &BytesMut, cap: usize) -> Result<usize> {
    Ok(whole(buffer, cap)?.map_or(0, |whole| whole.saturating_sub(buffer.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_taken_whole_and_capped() {
        let mut buffer = BytesMut::from(&b"Z\0\0\0\x05IC\0\0\0"[..]);
        assert_eq!(take(&mut buffer, 16).unwrap(), Some(Frame { tag: b'Z', body: Bytes::from_static(b"I") }));
        assert_eq!(take(&mut buffer, 16).unwrap(), None);
        buffer.extend_from_slice(b"\x08ab");
        assert_eq!(missing(&buffer, 16).unwrap(), 2);
        buffer.extend_from_slice(b"cd");
        assert_eq!(take(&mut buffer, 16).unwrap().unwrap().body, &b"abcd"[..]);

        for bad in [&b"D\0\0\0\x03"[..], b"D\0\0\0\x15", b"D\xff\xff\xff\xff"] {
            let mut buffer = BytesMut::from(bad);
            assert!(matches!(take(&mut buffer, 16), Err(Error::Protocol(_))), "{bad:?}");
            assert!(missing(&buffer, 16).is_err());
        }
    }
}
