//! Which records are printed, and how.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    format::Format,
    page::{Place, write_line},
};

/// What the flags say about printing.
pub struct Printer {
    /// None: as JSON.
    pub format: Option<Format>,
    /// Only records of this key.
    pub key: Option<String>,
}

#[derive(Deserialize)]
struct Keyed {
    key: Option<String>,
}

impl Printer {
    /// Writes a record, unless it has another key; returns whether it has.
    pub fn write(
        &self,
        lines: &mut Vec<u8>,
        record: &RawValue,
        place: &Place<'_>,
    ) -> anyhow::Result<bool> {
        if let Some(key) = &self.key
            && serde_json::from_str::<Keyed>(record.get())?.key.as_ref() != Some(key)
        {
            return Ok(false);
        }
        match &self.format {
            Some(format) => format.write(lines, record, place)?,
            None => write_line(lines, record, place),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_records_of_the_key_are_written() {
        let place = Place { topic: "t", partition: Some(1), is_tagged: true };
        let printer = |key: Option<&str>, format: Option<&str>| Printer {
            format: format.map(|format| Format::parse(format).unwrap()),
            key: key.map(str::to_owned),
        };
        let record = r#"{"offset":0,"key":"k\n","value":{"key":"other"}}"#;
        let keyless = r#"{"offset":1,"value":1}"#;
        for (record, printer, line) in [
            (record, printer(Some("k\n"), Some("%o")), Some("0\n")),
            (record, printer(Some("other"), None), None),
            (keyless, printer(Some(""), None), None),
            (keyless, printer(None, None), Some("{\"partition\":1,\"offset\":1,\"value\":1}\n")),
        ] {
            let mut lines = Vec::new();
            let record = RawValue::from_string(record.to_owned()).unwrap();
            assert_eq!(printer.write(&mut lines, &record, &place).unwrap(), line.is_some());
            assert_eq!(String::from_utf8(lines).unwrap(), line.unwrap_or_default());
        }
    }
}
