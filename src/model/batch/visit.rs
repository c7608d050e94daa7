//! The shape of an append: hand-written visitors over serde_json, without an intermediate tree.
//! Every leaf is captured as `RawValue`, whose scan is iterative, so that deep nesting cannot
//! exhaust the stack; and a `RawValue` (unlike an `Option` of one) distinguishes null from absent.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{
    Envelope,
    line::Text,
    reader::{RECORD_FIELDS, Reader},
};

const ENVELOPE_FIELDS: &[&str] =
    &["producer_id", "epoch", "sequence", "expected_offset", "on_duplicate", "records"];

/// A field name: known, and new in its object.
struct FieldVisitor<'r, 'a> {
    reader: &'r mut Reader<'a>,
    known: &'static [&'static str],
    seen: &'r mut u16,
}

impl<'a> DeserializeSeed<'a> for FieldVisitor<'_, 'a> {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'a>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_str(self)
    }
}

impl<'a> Visitor<'a> for FieldVisitor<'_, 'a> {
    type Value = &'static str;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        let Some(index) = self.known.iter().position(|known| *known == name) else {
            let of_record = self.reader.record_index.is_some();
            let fields = if of_record { RECORD_FIELDS } else { ENVELOPE_FIELDS };
            let detail = format!("unknown field; expected one of {}", fields.join(", "));
            return Err(self.reader.refuse(Some(name), detail));
        };
        let bit = 1 << index;
        if *self.seen & bit != 0 {
            return Err(self.reader.refuse(Some(name), "given twice".to_owned()));
        }
        *self.seen |= bit;
        self.reader.field = Some(self.known[index]);
        Ok(self.known[index])
    }
}

pub(super) struct EnvelopeVisitor<'r, 'a>(pub &'r mut Reader<'a>);

impl<'a> DeserializeSeed<'a> for EnvelopeVisitor<'_, 'a> {
    type Value = Envelope;

    fn deserialize<D: Deserializer<'a>>(self, json: D) -> Result<Envelope, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'a> Visitor<'a> for EnvelopeVisitor<'_, 'a> {
    type Value = Envelope;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object with `records`")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Envelope, A::Error> {
        let reader = self.0;
        let (mut envelope, mut seen) = (Envelope::default(), 0);
        loop {
            let known = ENVELOPE_FIELDS;
            let name = FieldVisitor { reader: &mut *reader, known, seen: &mut seen };
            let Some(field) = map.next_key_seed(name)? else { break };
            if field == "records" {
                map.next_value_seed(RecordsVisitor(&mut *reader))?;
            } else if field == "on_duplicate" {
                envelope.on_duplicate =
                    reader.on_duplicate(map.next_value::<&RawValue>()?.get())?;
            } else {
                let number = reader.integer(map.next_value::<&RawValue>()?.get())?;
                match field {
                    "producer_id" => envelope.producer_id = number,
                    "epoch" => envelope.epoch = number,
                    "sequence" => envelope.sequence = number,
                    _ => envelope.expected_offset = number,
                }
            }
            reader.field = None;
        }
        if reader.lines.len() == 0 {
            let detail = "missing; expected an array of at least one record".to_owned();
            return Err(reader.refuse(Some("records"), detail));
        }
        Ok(envelope)
    }
}

pub(super) struct RecordsVisitor<'r, 'a>(pub &'r mut Reader<'a>);

impl<'a> DeserializeSeed<'a> for RecordsVisitor<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'a> Visitor<'a> for RecordsVisitor<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an array of at least one record")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut seq: A) -> Result<(), A::Error> {
        let reader = self.0;
        reader.field = None;
        loop {
            reader.record_index = Some(reader.lines.len());
            if seq.next_element_seed(RecordVisitor(&mut *reader))?.is_none() {
                break;
            }
        }
        reader.record_index = None;
        if reader.lines.len() == 0 {
            reader.field = Some("records");
            let detail = "empty; expected an array of at least one record".to_owned();
            return Err(reader.refuse(None, detail));
        }
        Ok(())
    }
}

pub(super) struct RecordVisitor<'r, 'a>(pub &'r mut Reader<'a>);

impl<'a> DeserializeSeed<'a> for RecordVisitor<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'a> Visitor<'a> for RecordVisitor<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object with `value` or `value_base64`")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        let reader = self.0;
        reader.record.clear();
        let (known, mut seen) = (reader.record_fields, 0);
        loop {
            let name = FieldVisitor { reader: &mut *reader, known, seen: &mut seen };
            let Some(field) = map.next_key_seed(name)? else { break };
            if field == "headers" {
                map.next_value_seed(HeadersVisitor(&mut *reader))?;
            } else if RECORD_FIELDS.contains(&field) {
                let token = map.next_value::<&RawValue>()?.get();
                reader.take(field, token)?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
            reader.field = None;
        }
        reader.end_record()
    }
}

struct HeadersVisitor<'r, 'a>(&'r mut Reader<'a>);

impl<'a> DeserializeSeed<'a> for HeadersVisitor<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_option(self)
    }
}

impl<'a> Visitor<'a> for HeadersVisitor<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_none<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'a>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        let reader = self.0;
        while let Some(name) = map.next_key::<&RawValue>()? {
            let name = Text::read(name.get()).map_err(|detail| {
                reader.refuse::<A::Error>(None, format!("a header's name is {detail}"))
            })?;
            let value = Text::read(map.next_value::<&RawValue>()?.get())
                .map_err(|detail| reader.refuse::<A::Error>(Some(&name.text), detail))?;
            reader.record.headers.push((name, value));
        }
        reader.end_headers()
    }
}
