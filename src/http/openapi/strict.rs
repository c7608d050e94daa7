//! What the server refuses and no derived schema says: names of other characters, and fields that
//! it does not know.

use utoipa::openapi::{
    Components, RefOr, Schema,
    path::{Parameter, ParameterIn},
    schema::{
        AdditionalProperties, ArrayItems, KnownFormat, Object, ObjectBuilder, SchemaFormat,
        SchemaType, Type,
    },
};

use crate::model::{MAX_INTEGER, group::MAX_MEMBER_ID_BYTES, name::MAX_NAME_BYTES};

/// What `Name::parse` takes.
const NAME: &str = "^[A-Za-z0-9._-]+$";
/// Schemas of requests that are parsed without a derived type.
const CLOSED: [&str; 2] = ["Append", "Record"];

/// Properties with the name of something that has a name.
pub fn schemas(components: &mut Components) {
    for (name, schema) in &mut components.schemas {
        let RefOr::T(Schema::Object(object)) = schema else { continue };
        for (property, schema) in &mut object.properties {
            match schema {
                RefOr::T(Schema::Object(text)) if is_name(property) => named(text),
                RefOr::T(Schema::Array(array)) if property == "topics" => {
                    if let ArrayItems::RefOrSchema(items) = &mut array.items
                        && let RefOr::T(Schema::Object(text)) = &mut **items
                    {
                        named(text);
                    }
                }
                _ => {}
            }
        }
        if CLOSED.contains(&name.as_str()) {
            object.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
        }
    }
}

/// Parameters with the name of something that has a name, a number or an id.
pub fn parameter(parameter: &mut Parameter) {
    let of = |kind| ObjectBuilder::new().schema_type(SchemaType::new(kind));
    let integer = |format, most: i64| {
        let number = of(Type::Integer).format(Some(SchemaFormat::KnownFormat(format)));
        number.minimum(Some(0)).maximum(Some(most))
    };
    let in_path = parameter.parameter_in == ParameterIn::Path;
    let schema = match parameter.name.as_str() {
        name if is_name(name) => {
            let mut text = of(Type::String).build();
            named(&mut text);
            text
        }
        "partition" => integer(KnownFormat::Int32, i32::MAX.into()).build(),
        "producer_id" if in_path => integer(KnownFormat::Int64, MAX_INTEGER).build(),
        "member_id" => {
            let id = of(Type::String).min_length(Some(1));
            id.max_length(Some(MAX_MEMBER_ID_BYTES)).build()
        }
        _ => return,
    };
    parameter.schema = Some(schema.into());
}

fn is_name(name: &str) -> bool {
    ["topic", "group", "tenant", "transactional_id"].contains(&name)
}

fn named(text: &mut Object) {
    (text.min_length, text.max_length) = (Some(1), Some(MAX_NAME_BYTES));
    text.pattern = Some(NAME.into());
}
