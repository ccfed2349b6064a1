use proptest::prelude::*;

use super::{
    aead::{Fast, Portable},
    *,
};

fn sealed<C: Cipher>(key: &Key, aad: &[u8], plain: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    seal_by::<C>(&mut out, key, aad, plain, true).unwrap();
    out
}

fn noise(length: usize) -> Vec<u8> {
    let mut out = vec![0; length];
    holdfast_core::Random::seeded(7).fill(&mut out);
    out
}

proptest! {
    #[test]
    fn what_is_sealed_opens(key: [u8; 32], aad: Vec<u8>, plain: Vec<u8>, repeat in 1usize..40) {
        let (key, plain) = (Key::new(key), plain.repeat(repeat));
        let sealed = seal(&key, &aad, &plain).unwrap();
        prop_assert!(sealed.len() <= sealed_max(plain.len()));
        prop_assert_eq!(open(&key, &aad, &sealed, plain.len()).unwrap(), plain);
    }

    #[test]
    fn two_ciphers_make_the_same_bytes(key: [u8; 32], aad: Vec<u8>, plain: Vec<u8>, repeat in 1usize..40) {
        let (key, plain) = (Key::new(key), plain.repeat(repeat));
        let fast = sealed::<Fast>(&key, &aad, &plain);
        prop_assert_eq!(&fast, &sealed::<Portable>(&key, &aad, &plain));
        prop_assert_eq!(open_by::<Portable>(&key, &aad, &fast, plain.len()).unwrap(), plain);
    }

    #[test]
    fn any_bytes_are_refused_or_known(bytes: Vec<u8>) {
        prop_assert!(open(&Key::new([1; 32]), b"", &bytes, 1 << 20).is_err());
    }
}

#[test]
fn frames_have_the_same_bytes_by_both_ciphers() {
    let key = Key::new([5; 32]);
    for length in [FRAME - 1, FRAME, FRAME + 1, 2 * FRAME, 3 * FRAME + 17] {
        let plain = noise(length);
        let fast = sealed::<Fast>(&key, b"x", &plain);
        assert_eq!(fast.len(), sealed_max(length));
        assert_eq!(fast, sealed::<Portable>(&key, b"x", &plain));
        assert_eq!(open(&key, b"x", &fast, length).unwrap(), plain);
    }
}

#[test]
fn every_flip_and_every_cut_is_refused() {
    let key = Key::new([5; 32]);
    for plain in [&b""[..], b"short", &[7; 400]] {
        let sealed = seal(&key, b"aad", plain).unwrap();
        for at in 0..sealed.len() {
            for bit in 0..8 {
                let mut flipped = sealed.clone();
                flipped[at] ^= 1 << bit;
                assert!(open(&key, b"aad", &flipped, 1 << 20).is_err(), "byte {at} bit {bit}");
            }
            assert!(open(&key, b"aad", &sealed[..at], 1 << 20).is_err(), "cut at {at}");
        }
        assert!(open(&key, b"aax", &sealed, 1 << 20).is_err());
        assert!(open(&Key::new([6; 32]), b"aad", &sealed, 1 << 20).is_err());
    }
}

#[test]
fn frames_cannot_be_dropped_or_swapped() {
    let key = Key::new([5; 32]);
    let plain = noise(3 * FRAME);
    let sealed = seal(&key, b"", &plain).unwrap();
    let (prefix, body) = sealed.split_at(PREFIX);
    let (text, tags) = body.split_at(3 * FRAME);
    let build = |opened: usize, order: &[usize]| {
        let mut out = prefix.to_vec();
        out[1..].copy_from_slice(&(opened as u32).to_le_bytes());
        order.iter().for_each(|i| out.extend_from_slice(&text[i * FRAME..(i + 1) * FRAME]));
        order.iter().for_each(|i| out.extend_from_slice(&tags[i * TAG..(i + 1) * TAG]));
        open(&key, b"", &out, 8 * FRAME)
    };
    assert_eq!(build(3 * FRAME, &[0, 1, 2]).unwrap(), plain);
    for order in [&[0, 1][..], &[0], &[1, 0, 2], &[0, 1, 1], &[0, 1, 2, 2]] {
        assert!(build(order.len() * FRAME, order).is_err(), "{order:?}");
    }
}

#[test]
fn the_cap_comes_before_the_allocation() {
    let key = Key::new([5; 32]);
    let sealed = seal(&key, b"", &[0; 5000]).unwrap();
    assert!(sealed.len() < 100);
    let error = open(&key, b"", &sealed, 4999).unwrap_err();
    assert!(error.to_string().contains("5000"), "{error}");
    let mut huge = sealed;
    huge[1..PREFIX].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(open(&key, b"", &huge, OBJECT_MAX).unwrap_err().to_string().contains("at most"));
}

#[test]
fn what_does_not_shrink_is_stored_and_keys_say_nothing() {
    let key = Key::new([5; 32]);
    assert_eq!(seal(&key, b"", &noise(1000)).unwrap()[0], STORED);
    assert_eq!(seal(&key, b"", &[1; 1000]).unwrap()[0], ZSTD);
    assert_eq!(format!("{:?}", Key::new([0x41; 32])), "Key(…)");
    let derived = key.derive(purpose::PIECE, b"salt");
    assert_ne!(derived.bytes(), key.derive(purpose::LAYER, b"salt").bytes());
    assert_ne!(derived.bytes(), key.derive(purpose::PIECE, b"salu").bytes());
}
