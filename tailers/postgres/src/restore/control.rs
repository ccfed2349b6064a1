//! The server's control file. A restored one must not be usable without the backup label: whoever deletes the
//! label (a server's own hint once said so) would start a cluster that is torn, without a word.
//!
//! So the checkpoint it names is set to a position at which no record can begin. With a label the server takes the
//! checkpoint from there and never looks at this one; without it, it stops with «could not locate a valid
//! checkpoint record». Layout: Postgres `catalog/pg_control.h`; the fields used lie alike in 13 to 18, and the
//! checksum is found by where it fits.

use holdfast_core::{Error, Result};

/// Not a multiple of 8, and behind a page header as the server's first check wants it.
const NOWHERE: u64 = 0xdead;
const CHECKPOINT: usize = 32;

/// The control file with its checkpoint made unusable.
pub fn without_checkpoint(control: &[u8]) -> Result<Vec<u8>> {
    let at = checksum_at(control).ok_or_else(|| {
        Error::corrupt(
            "the control file of the base backup has no checksum that fits: choose another base backup",
        )
    })?;
    let mut out = control.to_vec();
    let sum = |bytes: &[u8]| crc32c::crc32c(bytes).to_le_bytes();
    if let Some(field) = out.get_mut(CHECKPOINT..CHECKPOINT + 8) {
        field.copy_from_slice(&NOWHERE.to_le_bytes());
    }
    let sum = sum(out.get(..at).unwrap_or_default());
    if let Some(field) = out.get_mut(at..at + 4) {
        field.copy_from_slice(&sum);
    }
    Ok(out)
}

fn checksum_at(control: &[u8]) -> Option<usize> {
    (CHECKPOINT + 8..512).step_by(4).find(|at| {
        let held = control.get(*at..at + 4).and_then(|bytes| bytes.first_chunk().copied());
        let sum = control.get(..*at).map(crc32c::crc32c);
        held.is_some() && held.map(u32::from_le_bytes) == sum
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_fits_again_and_damage_is_refused() {
        let mut control: Vec<u8> = (0..8192u32).map(|n| (n % 251) as u8).collect();
        assert!(without_checkpoint(&control).is_err());
        let sum = crc32c::crc32c(&control[..288]);
        control[288..292].copy_from_slice(&sum.to_le_bytes());
        let out = without_checkpoint(&control).unwrap();
        assert_eq!(out[32..40], NOWHERE.to_le_bytes());
        assert_eq!(checksum_at(&out), Some(288));
        assert_eq!(
            (&out[..32], &out[40..288], &out[292..]),
            (&control[..32], &control[40..288], &control[292..])
        );
        assert!(without_checkpoint(&control[..100]).is_err());
    }
}
