//! Page headers: every 8 KiB of WAL begin with one, and it tells how to find the next record from there.

use super::{Lsn, SegmentSize};

/// Bytes of a WAL page. Servers built with another size are refused when we connect.
pub const PAGE: u64 = 8192;
/// Bytes of a page header, and of the longer one at the start of each segment.
pub const HEADER: usize = 24;
pub const LONG_HEADER: usize = 40;

const CONTINUES: u16 = 1;
const LONG: u16 = 2;
const OVERWRITES: u16 = 8;

/// Major version that writes pages with this magic number.
pub fn major(magic: u16) -> Option<u32> {
    Some(match magic {
        0xD106 => 13,
        0xD10D => 14,
        0xD110 => 15,
        0xD113 => 16,
        0xD116 => 17,
        0xD118 => 18,
        _ => return None,
    })
}

/// What a page header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageHeader {
    pub major: u32,
    pub timeline: u32,
    pub address: Lsn,
    /// Bytes of the record begun on an earlier page that are still to come; 0 when none is.
    pub remaining: u32,
    /// The record begun on an earlier page was given up (crash); a new one begins here.
    pub overwrites: bool,
    pub long: Option<LongHeader>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongHeader {
    pub system_identifier: u64,
    pub segment: SegmentSize,
}

impl PageHeader {
    /// Length of the header that begins with these bytes, of which at least four are needed.
    pub fn length(head: &[u8]) -> Option<usize> {
        let info = u16::from_le_bytes(*head.get(2..)?.first_chunk()?);
        Some(if info & LONG == 0 { HEADER } else { LONG_HEADER })
    }

    /// Reads the header of the page at `at`; the reason why not when it is none.
    pub fn parse(bytes: &[u8], at: Lsn) -> Result<Self, String> {
        let mut fields = Fields(bytes);
        let short = || "the page header is cut short".to_owned();
        let magic = fields.u16().ok_or_else(short)?;
        let info = fields.u16().ok_or_else(short)?;
        let major = major(magic).ok_or_else(|| {
            format!("the page has the magic number {magic:04X}, which no Postgres from 13 to 18 writes")
        })?;
        let timeline = fields.u32().ok_or_else(short)?;
        let address = Lsn(fields.u64().ok_or_else(short)?);
        let remaining = fields.u32().ok_or_else(short)?;
        if address != at {
            return Err(format!("the page says that it lies at {address}"));
        }
        let long = if info & LONG == 0 {
            None
        } else {
            fields.u32().ok_or_else(short)?;
            let system_identifier = fields.u64().ok_or_else(short)?;
            let segment = fields.u32().ok_or_else(short)?;
            let page = fields.u32().ok_or_else(short)?;
            if u64::from(page) != PAGE {
                return Err(format!(
                    "the server writes WAL pages of {page} bytes; only {PAGE} are supported"
                ));
            }
            let segment = SegmentSize::new(u64::from(segment)).map_err(|error| error.to_string())?;
            Some(LongHeader { system_identifier, segment })
        };
        let continues = info & CONTINUES != 0;
        if continues != (remaining > 0) {
            return Err("the page contradicts itself on whether a record goes on".to_owned());
        }
        Ok(Self { major, timeline, address, remaining, overwrites: info & OVERWRITES != 0, long })
    }
}

/// Little-endian fields, read one after the other.
pub(super) struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (chunk, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*chunk)
    }
    pub fn skip(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.get(bytes..)?;
        Some(())
    }
    pub fn u8(&mut self) -> Option<u8> {
        self.chunk::<1>().map(|[byte]| byte)
    }
    pub fn u16(&mut self) -> Option<u16> {
        self.chunk().map(u16::from_le_bytes)
    }
    pub fn u32(&mut self) -> Option<u32> {
        self.chunk().map(u32::from_le_bytes)
    }
    pub fn u64(&mut self) -> Option<u64> {
        self.chunk().map(u64::from_le_bytes)
    }
    pub fn i64(&mut self) -> Option<i64> {
        self.chunk().map(i64::from_le_bytes)
    }
}
