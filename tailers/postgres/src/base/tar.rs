//! A push parser for the tar streams of a base backup: ustar as the server writes it (name prefixes,
//! base-256 sizes, symbolic links), nothing more.
//!
//! Invariants: never panics on hostile bytes; holds one header at most; member data passes through as slices.

use holdfast_core::{Bytes, Error, Result};

const BLOCK: usize = 512;

/// What the stream holds, in order: a member, then its data in slices that add up to its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Member(Member),
    Data(Bytes),
    /// The member's last byte was passed.
    End,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// As written, without a leading `./` and without a trailing `/`.
    pub path: String,
    pub kind: MemberKind,
    pub size: u64,
    pub mode: u32,
    pub mtime: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberKind {
    File,
    Folder,
    Link { target: String },
}

enum State {
    Header,
    Data {
        left: u64,
        padding: u64,
    },
    Padding(u64),
    /// An empty block was seen: only such may follow.
    Ended,
}

/// See the module page.
pub struct TarParser {
    state: State,
    header: Vec<u8>,
}

impl Default for TarParser {
    fn default() -> Self {
        Self { state: State::Header, header: Vec::with_capacity(BLOCK) }
    }
}

impl TarParser {
    /// Takes the next bytes and hands what they complete to `found`.
    pub fn push(&mut self, mut bytes: Bytes, found: &mut Vec<Part>) -> Result<()> {
        while !bytes.is_empty() {
            match &mut self.state {
                State::Header => {
                    let take = (BLOCK - self.header.len()).min(bytes.len());
                    self.header.extend_from_slice(&bytes.split_to(take));
                    if self.header.len() == BLOCK {
                        self.member(found)?;
                        self.header.clear();
                    }
                }
                State::Data { left, padding } => {
                    let take = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    found.push(Part::Data(bytes.split_to(take)));
                    *left -= take as u64;
                    if *left == 0 {
                        found.push(Part::End);
                        self.state = if *padding == 0 { State::Header } else { State::Padding(*padding) };
                    }
                }
                State::Padding(left) => {
                    let take = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    drop(bytes.split_to(take));
                    *left -= take as u64;
                    if *left == 0 {
                        self.state = State::Header;
                    }
                }
                State::Ended => {
                    if bytes.iter().any(|byte| *byte != 0) {
                        return Err(Error::corrupt("a tar stream of the base backup goes on behind its end"));
                    }
                    bytes.clear();
                }
            }
        }
        Ok(())
    }

    /// The stream ended: was it whole?
    pub fn finish(self) -> Result<()> {
        match self.state {
            State::Ended => Ok(()),
            State::Header if self.header.is_empty() => Ok(()),
            _ => Err(Error::retry("a tar stream of the base backup ends within a file")),
        }
    }

    fn member(&mut self, found: &mut Vec<Part>) -> Result<()> {
        if self.header.iter().all(|byte| *byte == 0) {
            self.state = State::Ended;
            return Ok(());
        }
        let member = parse(&self.header)?;
        let size = member.size;
        found.push(Part::Member(member));
        if size == 0 {
            found.push(Part::End);
            self.state = State::Header;
        } else {
            let padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
            self.state = State::Data { left: size, padding };
        }
        Ok(())
    }
}

fn parse(header: &[u8]) -> Result<Member> {
    let bad = |why: &str| Error::corrupt(format!("a tar header of the base backup {why}"));
    let field = |from: usize, length: usize| header.get(from..from + length).unwrap_or_default();
    let stated = number(field(148, 8)).ok_or_else(|| bad("has no checksum"))?;
    let sum: u64 = header
        .iter()
        .enumerate()
        .map(|(at, byte)| if (148..156).contains(&at) { u64::from(b' ') } else { u64::from(*byte) })
        .sum();
    if sum != stated {
        return Err(bad("does not match its checksum"));
    }
    let text = |from, length| {
        let raw: &[u8] = field(from, length).split(|byte| *byte == 0).next().unwrap_or_default();
        std::str::from_utf8(raw).map_err(|_| bad("holds a name that is no UTF-8"))
    };
    let (name, prefix) = (text(0, 100)?, if field(257, 5) == b"ustar" { text(345, 155)? } else { "" });
    let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
    let path = path.trim_start_matches("./").trim_end_matches('/').to_owned();
    if path.starts_with('/') || path.split('/').any(|part| part == "..") {
        return Err(bad(&format!("names «{path}», which leaves the data folder")));
    }
    let (kind, sized) = match field(156, 1) {
        b"0" | b"\0" => (MemberKind::File, true),
        b"5" => (MemberKind::Folder, false),
        b"2" => (MemberKind::Link { target: text(157, 100)?.to_owned() }, false),
        other => return Err(bad(&format!("is of the unknown kind {other:?}"))),
    };
    let size = number(field(124, 12)).ok_or_else(|| bad("has no size"))?;
    Ok(Member {
        path,
        kind,
        size: if sized { size } else { 0 },
        mode: number(field(100, 8)).unwrap_or(0) as u32 & 0o7777,
        mtime: number(field(136, 12)).and_then(|time| i64::try_from(time).ok()).unwrap_or(0),
    })
}

/// Octal digits, or big-endian with the top bit set where those are too few.
fn number(field: &[u8]) -> Option<u64> {
    let (first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        let mut value = u64::from(first & 0x7f);
        for byte in rest {
            if value >> 56 != 0 {
                return None;
            }
            value = value << 8 | u64::from(*byte);
        }
        return Some(value);
    }
    let digits: Vec<u8> = field.iter().copied().filter(|byte| !matches!(byte, b' ' | 0)).collect();
    if digits.is_empty() || digits.iter().any(|digit| !(b'0'..=b'7').contains(digit)) {
        return None;
    }
    digits.iter().try_fold(0u64, |value, digit| value.checked_mul(8)?.checked_add(u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn build(files: &[(String, Vec<u8>)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, data) in files {
            let mut header = tar::Header::new_ustar();
            header.set_path(path).unwrap();
            header.set_size(data.len() as u64);
            header.set_mode(0o600);
            header.set_mtime(1_700_000_000);
            header.set_cksum();
            builder.append(&header, data.as_slice()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn read(bytes: &[u8], chunk: usize) -> Result<Vec<(String, Vec<u8>)>> {
        let (mut parser, mut found) = (TarParser::default(), Vec::new());
        for chunk in bytes.chunks(chunk.max(1)) {
            parser.push(Bytes::copy_from_slice(chunk), &mut found)?;
        }
        parser.finish()?;
        let mut files: Vec<(String, Vec<u8>)> = Vec::new();
        for part in found {
            match part {
                Part::Member(member) => files.push((member.path, Vec::new())),
                Part::Data(data) => files.last_mut().unwrap().1.extend_from_slice(&data),
                Part::End => {}
            }
        }
        Ok(files)
    }

    proptest! {
        #[test]
        fn files_come_back_in_any_chunking(
            files in proptest::collection::vec(("[a-z]{1,60}/[a-z]{1,90}", proptest::collection::vec(any::<u8>(), 0..2000)), 0..8),
            chunk in 1usize..4000,
        ) {
            prop_assert_eq!(read(&build(&files), chunk).unwrap(), files);
        }

        #[test]
        fn hostile_bytes_are_refused_or_read(mut bytes in proptest::collection::vec(any::<u8>(), 512..2048), fix in any::<bool>()) {
            if fix {
                bytes[148..156].copy_from_slice(b"        ");
                let sum: u64 = bytes[..512].iter().map(|b| u64::from(*b)).sum();
                bytes[148..156].copy_from_slice(format!("{sum:07o}\0").as_bytes());
            }
            let _ = read(&bytes, 700);
        }
    }

    #[test]
    fn sizes_beyond_eight_gib_are_base_256() {
        assert_eq!(number(&[0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1]), Some((2 << 32) + 1));
        assert_eq!(number(&[0xff; 12]), None);
        assert_eq!(number(b"00000001000\0"), Some(512));
    }

    #[test]
    fn a_path_out_of_the_folder_is_refused() {
        let mut bytes = build(&[("aa/postgresql".into(), vec![1])]);
        bytes[..2].copy_from_slice(b"..");
        bytes[148..156].copy_from_slice(b"        ");
        let sum: u64 = bytes[..512].iter().map(|b| u64::from(*b)).sum();
        bytes[148..156].copy_from_slice(format!("{sum:07o}\0").as_bytes());
        assert!(read(&bytes, 512).unwrap_err().to_string().contains("leaves the data folder"));
    }
}
