//! Schemas of settings, built from the settings table.

use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        Ref, RefOr,
        schema::{AdditionalProperties, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type},
    },
};

use crate::model::{
    MAX_INTEGER,
    settings::{Key, Setting},
};

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
    member: fn(Key) -> RefOr<Schema>,
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

fn value_schema(key: Key) -> RefOr<Schema> {
    value(key).description(Some(key.setting().help)).into()
}

fn change_schema(key: Key) -> RefOr<Schema> {
    let setting = key.setting();
    if setting.choices.is_empty() {
        let schema = if setting.nullable { CHANGE_OR_NULL } else { CHANGE };
        return change(schema, setting, setting.help);
    }
    let words = setting.choices.iter().copied().chain(["default"]);
    of(Type::String).enum_values(Some(words)).description(Some(setting.help)).into()
}

const CHANGE: &str = "SettingChange";
const CHANGE_OR_NULL: &str = "NullableSettingChange";

/// The schemas that all changes of numbers share, so that generators make two classes for the word
/// `default`, not one per setting. Null is beside the word, because a null beside the number is
/// more than some of them can write.
pub fn changes() -> [(String, RefOr<Schema>); 2] {
    let schema = |kinds, help: &str| {
        let number = of(Type::Integer).minimum(Some(0)).maximum(Some(MAX_INTEGER));
        let word = ObjectBuilder::new().schema_type(kinds).pattern(Some("^default$"));
        Schema::from(OneOfBuilder::new().item(number).item(word).description(Some(help))).into()
    };
    let null = SchemaType::Array(vec![Type::String, Type::Null]);
    [
        (CHANGE.into(), schema(Type::String.into(), "A new value, or `default`.")),
        (CHANGE_OR_NULL.into(), schema(null, "A new value, null (unlimited), or `default`.")),
    ]
}

fn change(schema: &str, setting: Setting, help: &str) -> RefOr<Schema> {
    let mut change = Ref::from_schema_name(schema);
    let Setting { minimum, maximum, .. } = setting;
    change.description =
        format!("{help} From {minimum} to {maximum}; `default` removes the own value.");
    change.into()
}

fn origin_schema(key: Key) -> RefOr<Schema> {
    let name = key.name();
    let whose = format!("Origin of `{name}`; `operator`: the operator's maximum caps the value.");
    let origins = of(Type::String).enum_values(Some(["default", "operator", "tenant"]));
    origins.description(Some(whose)).into()
}

fn maximum_schema(key: Key) -> RefOr<Schema> {
    maximum(key).description(Some(most(key))).into()
}

fn maximum_change_schema(key: Key) -> RefOr<Schema> {
    change(CHANGE, key.setting(), &most(key))
}

fn maximum(key: Key) -> ObjectBuilder {
    let setting = key.setting();
    of(Type::Integer).minimum(Some(setting.minimum)).maximum(Some(setting.maximum))
}

fn most(key: Key) -> String {
    format!("The largest value that `{}` may have.", key.name())
}
