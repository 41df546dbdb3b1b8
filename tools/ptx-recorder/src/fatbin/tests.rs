//! Containers made here, byte by byte.

use super::*;

const TEXT: &str = ".version 9.0\n.target sm_100a\n.address_size 64\n";

fn container(kind: u16, flags: u64, body: &[u8], unpacked: usize) -> Vec<u8> {
    let mut entry = vec![0u8; 64];
    entry[..2].copy_from_slice(&kind.to_le_bytes());
    entry[4..8].copy_from_slice(&64u32.to_le_bytes());
    entry[8..16].copy_from_slice(&(body.len() as u64).to_le_bytes());
    entry[16..20].copy_from_slice(&(body.len() as u32).to_le_bytes());
    entry[28..32].copy_from_slice(&100u32.to_le_bytes());
    entry[40..48].copy_from_slice(&flags.to_le_bytes());
    entry[56..64].copy_from_slice(&(unpacked as u64).to_le_bytes());
    entry.extend(body);
    let mut all = CONTAINER.to_le_bytes().to_vec();
    all.extend([1, 0, 16, 0]);
    all.extend((entry.len() as u64).to_le_bytes());
    all.extend(entry);
    all
}

#[test]
fn plain_text() {
    let mut body = TEXT.as_bytes().to_vec();
    body.extend([0; 5]);
    let found = sources(&container(1, 0, &body, 0)).unwrap();
    assert_eq!(found[0].text, TEXT);
    assert_eq!(found[0].target, "sm_100a");
    assert_eq!(found[0].architecture(), 100);
}

#[test]
fn ptx_of_a_gpu() {
    let all = ["sm_90a", "sm_90", "sm_100", "sm_100f", "sm_100a", "sm_103a"];
    let all = all.map(|target| Ptx {
        target: target.into(),
        text: String::new(),
    });
    let best = |architecture| Ptx::best_for(&all, architecture).map(|p| p.target.as_str());
    assert_eq!(best(90), Some("sm_90a"));
    assert_eq!(best(100), Some("sm_100a"));
    assert_eq!(best(103), Some("sm_103a"));
    assert_eq!(best(110), Some("sm_100"));
    assert_eq!(best(89), None);
    assert_eq!(Ptx::best_for(&all[..1], 100), None, "90a is for 9.0 only");
    assert_eq!(Ptx::best_for(&all[3..4], 103), Some(&all[3]));
}

#[test]
fn lz4_blocks() {
    // "abcabcabcabc!": 3 literals, a copy of 9 from 3 back, 1 literal.
    let block = [0x35, b'a', b'b', b'c', 3, 0, 0x10, b'!'];
    assert_eq!(lz4(&block, 13).unwrap(), b"abcabcabcabc!");
    assert!(lz4(&block, 12).is_err() && lz4(&block, 14).is_err());
    assert!(lz4(&block[..4], 13).is_err());
    // A copy from before the beginning.
    assert!(lz4(&[0x15, b'a', 9, 0, 0], 10).is_err());
    // A length that goes on: 15 + 255 + 2 literals.
    let mut long = vec![0xf0, 255, 2];
    long.extend([b'x'; 272]);
    assert_eq!(lz4(&long, 272).unwrap(), [b'x'; 272]);
}

#[test]
fn what_is_wrong_is_said() {
    let e = sources(&container(2, 0, &[1, 2, 3], 0)).unwrap_err();
    assert!(e.to_string().contains("code=compute_100a") && e.to_string().contains("sm_100"));
    let e = sources(&container(1, ZSTD, &[1, 2, 3, 4, 5], 50)).unwrap_err();
    assert!(e.to_string().contains("--no-compress"), "{e}");
    let e = sources(&container(1, ZSTD, &[1], usize::MAX)).unwrap_err();
    assert!(e.to_string().contains("--no-compress"), "{e}");
    let whole = container(1, 0, TEXT.as_bytes(), 0);
    for n in 0..whole.len() {
        assert!(sources(&whole[..n]).is_err(), "{n}");
    }
    assert_eq!(sources(&[0; 32]), Err(FatbinError::Magic(0)));
}

#[test]
fn sizes_add_up() {
    // "abcabcabcabc!", as below.
    let block = [0x35, b'a', b'b', b'c', 3, 0, 0x10, b'!'];
    let one = container(1, LZ4, &block, 13);
    let mut two = one.clone();
    two.extend(&one[HEADER..]);
    let size = (two.len() - HEADER) as u64;
    two[8..16].copy_from_slice(&size.to_le_bytes());
    assert_eq!(sources_within(&one, 13).unwrap().len(), 1);
    assert_eq!(sources_within(&two, 26).unwrap().len(), 2);
    assert!(sources_within(&one, 12).is_err() && sources_within(&two, 25).is_err());
}

#[test]
fn files_of_modules() {
    let whole = container(1, 0, TEXT.as_bytes(), 0);
    assert_eq!(image_of(&whole).unwrap()[0].text, TEXT);
    assert_eq!(image_of(TEXT.as_bytes()).unwrap()[0].text, TEXT);
    // A file need not end with a zero, nor have any bytes.
    assert_eq!(image_of(b"").unwrap()[0].text, "");
    assert_eq!(image_of(&[0xff; 3]), Err(FatbinError::Text));
    for n in 4..whole.len() {
        assert!(image_of(&whole[..n]).is_err(), "{n}");
    }
    // Lengths of nearly 2^64 bytes, and of less than a header.
    let mut longer = whole.clone();
    longer[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(image_of(&longer), Err(FatbinError::Damaged));
    let mut shorter = whole;
    shorter[6] = 0;
    assert_eq!(image_of(&shorter), Err(FatbinError::Damaged));
    // A wrapper's address is none in a file.
    let mut wrapper = WRAPPER.to_le_bytes().to_vec();
    wrapper.extend([1; 20]);
    assert_eq!(image_of(&wrapper), Err(FatbinError::Wrapper));
    assert!(matches!(
        image_of(b"\x7fELF..."),
        Err(FatbinError::NoPtx(_))
    ));
    // SAFETY: null is allowed.
    assert_eq!(unsafe { image(std::ptr::null()) }, Err(FatbinError::Null));
}
