//! Times and sizes with a unit, such as `7d` and `10MiB`. Both directions are exact.

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Milliseconds,
    Bytes,
}

impl Unit {
    /// The unit of a setting, which is in its name.
    pub fn of(name: &str) -> Option<Self> {
        match name {
            _ if name.ends_with("_ms") => Some(Self::Milliseconds),
            _ if name.ends_with("_bytes") => Some(Self::Bytes),
            _ if name.ends_with("_per_s") && name.contains("_bytes_") => Some(Self::Bytes),
            _ => None,
        }
    }

    /// The units that a number may have, the largest first.
    const fn scale(self) -> &'static [(&'static str, u64)] {
        match self {
            Self::Milliseconds => {
                &[("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)]
            }
            Self::Bytes => {
                &[("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)]
            }
        }
    }

    /// What a value looks like.
    pub const fn expected(self) -> &'static str {
        match self {
            Self::Milliseconds => {
                "a time is an integer with ms, s, m, h or d, such as 90s; without one it is in \
                 milliseconds"
            }
            Self::Bytes => {
                "a size is an integer with B, KiB, MiB, GiB or TiB, such as 10MiB; without one it \
                 is in bytes"
            }
        }
    }

    /// Parses `7d` and `10MiB`; a number without a unit is one of milliseconds or bytes.
    pub fn parse(self, text: &str) -> Result<u64, String> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let scale = self.scale().iter();
        let factor = match unit.trim_start() {
            "" => Some(1),
            unit => scale.clone().find(|(name, _)| *name == unit).map(|(_, factor)| *factor),
        };
        let (Some(factor), 1..) = (factor, digits) else { return Err(self.expected().into()) };
        let number = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
        number.ok_or_else(|| format!("{text} is too large"))
    }

    /// The number with the largest unit of which it is a multiple: `parse` takes it back.
    pub fn show(self, number: u64) -> String {
        let mut scale = self.scale().iter();
        match scale.find(|(_, factor)| number > 0 && number.is_multiple_of(*factor)) {
            Some((name, factor)) => format!("{}{name}", number / factor),
            None => number.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_have_units() {
        let times = [
            ("0", 0),
            ("17", 17),
            ("250ms", 250),
            ("90s", 90_000),
            ("15m", 900_000),
            ("12h", 43_200_000),
            ("7d", 604_800_000),
            ("7 d", 604_800_000),
        ];
        for (text, number) in times {
            assert_eq!(Unit::Milliseconds.parse(text), Ok(number), "{text}");
        }
        let sizes = [
            ("100", 100),
            ("100B", 100),
            ("64KiB", 65_536),
            ("10MiB", 10_485_760),
            ("1GiB", 1 << 30),
            ("16777215TiB", 16_777_215 << 40),
        ];
        for (text, number) in sizes {
            assert_eq!(Unit::Bytes.parse(text), Ok(number), "{text}");
        }
        for text in ["", "d", "-1d", "+1d", "1.5h", "1w", "1D", "1MiB", "1é", "1d1h", "0x1", " 1"]
        {
            let told = Unit::Milliseconds.parse(text).unwrap_err();
            assert!(told.contains("ms, s, m, h or d"), "{text}: {told}");
        }
        for text in ["10MB", "10mib", "10k", "1d", "1.5MiB"] {
            let told = Unit::Bytes.parse(text).unwrap_err();
            assert!(told.contains("B, KiB, MiB, GiB or TiB"), "{text}: {told}");
        }
        for text in ["18446744073709551616", "213503982335d", "99999999999999999999999s"] {
            assert_eq!(Unit::Milliseconds.parse(text), Err(format!("{text} is too large")));
        }
        assert!(Unit::Bytes.parse("16777216TiB").unwrap_err().contains("too large"));
    }

    #[test]
    fn values_are_shown_with_the_largest_unit_that_is_exact() {
        let times = [(0, "0"), (1, "1ms"), (1_000, "1s"), (90_000, "90s"), (604_800_000, "7d")];
        for (number, text) in times {
            assert_eq!(Unit::Milliseconds.show(number), text);
        }
        for (number, text) in
            [(160, "160B"), (1_536, "1536B"), (1 << 20, "1MiB"), (3 << 9, "1536B")]
        {
            assert_eq!(Unit::Bytes.show(number), text);
        }
    }

    #[test]
    fn the_end_of_a_name_is_its_unit() {
        assert_eq!(Unit::of("retention_ms"), Some(Unit::Milliseconds));
        assert_eq!(Unit::of("retention_bytes"), Some(Unit::Bytes));
        assert_eq!(Unit::of("max_topics"), None);
    }

    proptest! {
        #[test]
        fn what_is_shown_is_taken_back(number: u64, is_time: bool) {
            let unit = if is_time { Unit::Milliseconds } else { Unit::Bytes };
            prop_assert_eq!(unit.parse(&unit.show(number)), Ok(number));
        }
    }
}
