//! Makes the document plain enough for generators of clients, which know less of JSON Schema than
//! OpenAPI 3.1 allows. `scripts/check-clients` shows what they make of it.

use serde_json::json;
use utoipa::openapi::{
    Components, Ref, RefOr, Required, Schema,
    path::{Operation, Parameter},
    schema::{ArrayItems, KnownFormat, Object, SchemaFormat, SchemaType, Type},
};

use crate::{http::extract::media::Media, model::MAX_INTEGER};

/// Makes all schemas plain.
pub fn schemas(components: &mut Components) {
    components.schemas.values_mut().for_each(plain);
}

pub fn parameter(parameter: &mut Parameter) {
    if let Some(schema) = &mut parameter.schema {
        plain(schema);
        // no parameter can be sent as null
        if let RefOr::T(Schema::Object(object)) = schema
            && let SchemaType::Array(kinds) = &object.schema_type
            && let [kind, Type::Null] = &kinds[..]
        {
            object.schema_type = SchemaType::Type(kind.clone());
        }
    }
}

/// A body is required if it has required fields: an empty one counts as `{}`.
pub fn body(operation: &mut Operation, components: &Components) {
    let Some(RefOr::T(body)) = &mut operation.request_body else { return };
    let mut contents = body.content.values().filter_map(|content| match content {
        RefOr::T(content) => content.schema.as_ref(),
        RefOr::Ref(_) => None,
    });
    let may_be_empty = contents.any(|schema| match schema {
        RefOr::Ref(reference) => takes_nothing(reference, components),
        RefOr::T(_) => false,
    });
    body.required = Some(if may_be_empty { Required::False } else { Required::True });
}

fn takes_nothing(reference: &Ref, components: &Components) -> bool {
    let name = reference.ref_location.rsplit('/').next().unwrap_or_default();
    match components.schemas.get(name) {
        Some(RefOr::T(Schema::Object(object))) => {
            object.required.is_empty() && object.min_properties.is_none()
        }
        _ => false,
    }
}

/// An answer's type is that of its JSON. Its other form, lines of records, is described in the
/// extension `x-ndjson`: as a second type it makes a union of every answer.
pub fn answers(operation: &mut Operation) {
    for response in operation.responses.responses.values_mut() {
        let RefOr::T(response) = response else { continue };
        for header in response.headers.values_mut() {
            if let RefOr::T(header) = header {
                header.schema.iter_mut().for_each(plain);
            }
        }
        let lines = response.content.shift_remove(Media::Ndjson.as_str());
        let Some(RefOr::T(lines)) = lines else { continue };
        let example = lines.example.unwrap_or_default();
        let line = json!({"$ref": "#/components/schemas/ReadRecord"});
        let described = json!({"schema": line, "example": example});
        response.extensions = Some(std::iter::once(("x-ndjson", described)).collect());
        response.description += ". With `Accept: application/x-ndjson` the records alone, a \
            `ReadRecord` per line";
    }
}

/// Integers are below 2^53, as JavaScript has them. A field that may be absent or null is just
/// optional: few generators can write `oneOf` with null.
fn plain(schema: &mut RefOr<Schema>) {
    if let Some(only) = only_other_than_null(schema) {
        *schema = only;
    }
    let RefOr::T(schema) = schema else { return };
    match schema {
        Schema::Object(object) => {
            if is_integer(object) {
                plain_integer(object);
            }
            for property in object.properties.values_mut() {
                plain(property);
                without_default(property);
            }
        }
        Schema::Array(array) => {
            if let ArrayItems::RefOrSchema(items) = &mut array.items {
                plain(items);
            }
        }
        Schema::OneOf(one) => one.items.iter_mut().for_each(plain),
        _ => {}
    }
}

fn plain_integer(object: &mut Object) {
    let int32 = SchemaFormat::KnownFormat(KnownFormat::Int32);
    let most = if object.format == Some(int32) { i32::MAX.into() } else { MAX_INTEGER };
    object.maximum.get_or_insert(most.into());
    object.format.get_or_insert(SchemaFormat::KnownFormat(KnownFormat::Int64));
}

/// A default becomes a sentence: generators for TypeScript require a field that has one.
fn without_default(property: &mut RefOr<Schema>) {
    let RefOr::T(Schema::Object(object)) = property else { return };
    if let Some(default) = object.default.take() {
        let help = object.description.take().unwrap_or_default();
        object.description = Some(format!("{help} Default: {default}."));
    }
}

fn is_integer(object: &Object) -> bool {
    match &object.schema_type {
        SchemaType::Type(kind) => *kind == Type::Integer,
        SchemaType::Array(kinds) => kinds.contains(&Type::Integer),
        SchemaType::AnyValue => false,
    }
}

fn only_other_than_null(schema: &RefOr<Schema>) -> Option<RefOr<Schema>> {
    let RefOr::T(Schema::OneOf(one)) = schema else { return None };
    let is_null = |item: &RefOr<Schema>| match item {
        RefOr::T(Schema::Object(object)) => object.schema_type == SchemaType::Type(Type::Null),
        _ => false,
    };
    let mut others = one.items.iter().filter(|item| !is_null(item));
    match (others.next(), others.next()) {
        (Some(only), None) => Some(described(only.clone(), one.description.as_deref())),
        _ => None,
    }
}

fn described(mut schema: RefOr<Schema>, description: Option<&str>) -> RefOr<Schema> {
    match (&mut schema, description) {
        (RefOr::T(Schema::Object(object)), Some(text)) => object.description = Some(text.into()),
        (RefOr::Ref(reference), Some(text)) => reference.description = text.into(),
        _ => {}
    }
    schema
}
