//! Schemas of settings, built from the settings table.

use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        RefOr,
        schema::{AdditionalProperties, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type},
    },
};

use crate::model::settings::Key;

macro_rules! schemas {
    ($(#[doc = $doc:literal] $name:ident = $members:expr;)*) => {
        $(#[doc = $doc]
        pub struct $name;
        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                Schema::from($members.description(Some($doc.trim()))).into()
            }
        }
        impl ToSchema for $name {
            fn name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
        })*
    };
}

schemas! {
    /// A merge patch of a tenant's settings.
    SettingsPatch = members(Key::ALL.iter().copied(), change_schema, false);
    /// The settings to give a topic.
    TopicSettingsPatch = members(Key::of_topics(), change_schema, false);
    /// A topic's own settings; absent ones come from the tenant.
    TopicSettings = members(Key::of_topics(), value_schema, false);
    /// A tenant's own settings; absent ones have the default.
    OwnSettingValues = members(Key::ALL.iter().copied(), value_schema, false);
    /// The effective value of every setting.
    SettingValues = members(Key::ALL.iter().copied(), value_schema, true);
    /// The origin of each value.
    SettingOrigins = members(Key::ALL.iter().copied(), origin_schema, true);
    /// The largest value that each setting may have.
    SettingMaxima = members(Key::numbers(), maximum_schema, true);
    /// The largest values that the operator allows; for absent ones the server's maximum applies.
    OperatorMaxima = members(Key::numbers(), maximum_schema, false);
    /// A merge patch of maxima: `"default"` removes one, absent ones stay.
    MaximaPatch = members(Key::numbers(), maximum_change_schema, false);
}

fn members(
    keys: impl Iterator<Item = Key>,
    member: fn(Key) -> Schema,
    required: bool,
) -> ObjectBuilder {
    let closed = AdditionalProperties::FreeForm(false);
    keys.fold(of(Type::Object).additional_properties(Some(closed)), |object, key| {
        let object = object.property(key.name(), member(key));
        if required { object.required(key.name()) } else { object }
    })
}

fn of(kind: Type) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::new(kind))
}

/// One of the setting's words; or a number in its range, or null if the setting allows it.
fn value(key: Key) -> ObjectBuilder {
    let setting = key.setting();
    if !setting.choices.is_empty() {
        return of(Type::String).enum_values(Some(setting.choices.iter().copied()));
    }
    let kind = if setting.nullable {
        SchemaType::Array(vec![Type::Integer, Type::Null])
    } else {
        SchemaType::new(Type::Integer)
    };
    let number = ObjectBuilder::new().schema_type(kind);
    number.minimum(Some(setting.minimum)).maximum(Some(setting.maximum))
}

fn value_schema(key: Key) -> Schema {
    value(key).description(Some(key.setting().help)).into()
}

fn change_schema(key: Key) -> Schema {
    let default = of(Type::String).enum_values(Some(["default"]));
    let change = OneOfBuilder::new().description(Some(key.setting().help));
    change.item(value(key)).item(default).into()
}

fn origin_schema(key: Key) -> Schema {
    let name = key.name();
    let whose = format!("Origin of `{name}`; `operator`: the operator's maximum caps the value.");
    let origins = of(Type::String).enum_values(Some(["default", "operator", "tenant"]));
    origins.description(Some(whose)).into()
}

fn maximum_schema(key: Key) -> Schema {
    maximum(key).description(Some(most(key))).into()
}

fn maximum_change_schema(key: Key) -> Schema {
    let default = of(Type::String).enum_values(Some(["default"]));
    let change = OneOfBuilder::new().description(Some(most(key)));
    change.item(maximum(key)).item(default).into()
}

fn maximum(key: Key) -> ObjectBuilder {
    let setting = key.setting();
    of(Type::Integer).minimum(Some(setting.minimum)).maximum(Some(setting.maximum))
}

fn most(key: Key) -> String {
    format!("The largest value that `{}` may have.", key.name())
}
