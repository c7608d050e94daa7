//! LEB128: integers with 7 bits per byte, the lowest first.

/// Appends a number in the fewest bytes.
pub fn put(out: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Takes a number below 2^63 from the front. None if the bytes end before it does, or if it has
/// more bytes than `put` writes.
pub fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..63).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if *byte <= 0x7f {
            return (*byte != 0 || shift == 0).then_some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_leave_the_rest() {
        for (number, written) in [
            (0, &[0][..]),
            (127, &[127]),
            (128, &[0x80, 1]),
            (300, &[0xac, 2]),
            ((1 << 63) - 1, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]),
        ] {
            let mut out = Vec::new();
            put(&mut out, number);
            assert_eq!(out, written);
            out.push(7);
            let mut rest = &*out;
            assert_eq!((take(&mut rest), rest), (Some(number), &[7][..]));
        }
    }

    #[test]
    fn what_put_would_not_write_is_refused() {
        let mut large = Vec::new();
        put(&mut large, 1 << 63);
        for bytes in [&[][..], &[0x80], &[0x80, 0], &[0xff, 0x80, 0], &large] {
            assert_eq!(take(&mut &*bytes), None, "{bytes:?}");
        }
    }
}
