//! Tenant settings, and changes of settings in JSON, including those of topics. The description of
//! each setting comes from the table in `model::settings`.

use std::{collections::BTreeMap, fmt};

use axum::{
    Json,
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{ETAG, IF_MATCH, IF_NONE_MATCH},
    },
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::json;
use utoipa::ToSchema;

pub use super::openapi::settings::{
    MaximaPatch, OperatorMaxima, OwnSettingValues, TopicSettings, TopicSettingsPatch,
};

use super::{
    extract::{
        access::{Access, Admin, TenantAccess},
        body::JsonBody,
        media::AnswersJson,
        query::{NoParameters, Query},
    },
    openapi::settings::{SettingMaxima, SettingOrigins, SettingValues, SettingsPatch},
};
use crate::{
    broker::Error,
    model::{
        ValidationErrors,
        settings::{Change, Changes, IfMatch, Key, TenantSettings, Value},
        tenant::MaximaChanges,
    },
};

/// The changes: `"default"` removes the own value, absent settings stay.
#[derive(Default)]
pub struct SentChanges(Changes);

impl SentChanges {
    /// Returns the changes if every value is allowed. `at` is their pointer in the body.
    pub fn checked(self, at: &str, of_a_topic: bool, errors: &mut ValidationErrors) -> Changes {
        for (key, change) in &self.0 {
            let pointer = format!("{at}/{}", key.name());
            if of_a_topic && !key.setting().of_topics {
                errors.add(&pointer, "this is a setting of tenants, not of topics");
            } else if let Change::Set(value) = change {
                errors.parsed(&pointer, key.check(*value));
            }
        }
        self.0
    }

    /// Returns the maxima if every setting may have that maximum. `at` is their pointer in the
    /// body.
    pub fn maxima(self, at: &str, errors: &mut ValidationErrors) -> MaximaChanges {
        let mut maxima = MaximaChanges::new();
        for (key, change) in self.0 {
            let most = match change {
                Change::Default => Ok(None),
                _ if !key.setting().choices.is_empty() => Err("this setting has no maximum".into()),
                Change::Set(Value::Number(most)) => {
                    key.check(Value::Number(most)).map(|()| Some(most))
                }
                Change::Set(_) => Err("null is not a maximum; \"default\" removes one".into()),
            };
            if let Some(most) = errors.parsed(&format!("{at}/{}", key.name()), most) {
                maxima.insert(key, most);
            }
        }
        maxima
    }
}

impl<'de> Deserialize<'de> for SentChanges {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> de::Visitor<'de> for Members {
            type Value = SentChanges;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<SentChanges, A::Error> {
                let mut changes = Changes::new();
                while let Some(SentKey(key)) = map.next_key()? {
                    let change = map.next_value_seed(ChangeOf(key))?;
                    if changes.insert(key, change).is_some() {
                        return Err(de::Error::duplicate_field(key.name()));
                    }
                }
                Ok(SentChanges(changes))
            }
        }
        json.deserialize_map(Members)
    }
}

struct SentKey(Key);

impl<'de> Deserialize<'de> for SentKey {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        let name = String::deserialize(json)?;
        let unknown = || de::Error::custom(format!("unknown setting `{name}`"));
        Key::parse(&name).map(Self).ok_or_else(unknown)
    }
}

/// The new value of a setting.
struct ChangeOf(Key);

impl<'de> de::DeserializeSeed<'de> for ChangeOf {
    type Value = Change;
    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Change, D::Error> {
        json.deserialize_any(self)
    }
}

impl de::Visitor<'_> for ChangeOf {
    type Value = Change;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.setting().choices {
            [] => f.write_str("an integer, null or \"default\""),
            choices => write!(f, "\"{}\" or \"default\"", choices.join("\", \"")),
        }
    }
    fn visit_unit<E: de::Error>(self) -> Result<Change, E> {
        Ok(Change::Set(Value::Unlimited))
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<Change, E> {
        let other = || E::invalid_value(de::Unexpected::Str(text), &self);
        match text {
            "default" => Ok(Change::Default),
            text => self.0.choice(text).map(Change::Set).ok_or_else(other),
        }
    }
    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Change, E> {
        Ok(Change::Set(Value::Number(value)))
    }
    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Change, E> {
        self.visit_i64(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

/// The settings of a tenant.
#[derive(Serialize, ToSchema)]
pub struct Settings {
    /// The effective value of every setting; null means unlimited.
    #[schema(value_type = SettingValues)]
    settings: BTreeMap<&'static str, Value>,
    /// The origin of each value; `operator`: the operator's maximum caps it.
    #[schema(value_type = SettingOrigins)]
    origins: BTreeMap<&'static str, &'static str>,
    /// The largest value that the tenant and its topics may give each setting.
    #[schema(value_type = SettingMaxima)]
    maxima: BTreeMap<&'static str, i64>,
}

impl From<&TenantSettings> for Settings {
    fn from(settings: &TenantSettings) -> Self {
        let all = || settings.in_force.iter();
        Self {
            settings: all().map(|s| (s.key.name(), s.value)).collect(),
            origins: all().map(|s| (s.key.name(), s.origin.as_str())).collect(),
            maxima: all()
                .filter(|s| s.key.setting().choices.is_empty())
                .map(|s| (s.key.name(), s.maximum))
                .collect(),
        }
    }
}

/// The settings of a new tenant.
fn example() -> serde_json::Value {
    let each = |tell: fn(&Key) -> serde_json::Value| -> serde_json::Value {
        Key::ALL.iter().map(|key| (key.name().to_owned(), tell(key))).collect()
    };
    let maximum = |key: Key| (key.name().to_owned(), json!(key.setting().maximum));
    json!({
        "settings": each(|key| json!(key.setting().default)),
        "origins": each(|_| json!("default")),
        "maxima": Key::numbers().map(maximum).collect::<serde_json::Value>(),
    })
}

/// The values in the example of a patch.
const CHANGED: [(&str, Option<i64>); 2] =
    [("max_batch_records", Some(5000)), ("producer_expiry_ms", None)];

fn changes_example() -> serde_json::Value {
    let mut changes = json!({"max_topics": "default"});
    CHANGED.iter().for_each(|(name, value)| changes[*name] = json!(value));
    changes
}

/// The settings of a new tenant after that patch.
fn changed_example() -> serde_json::Value {
    let mut changed = example();
    for (name, value) in CHANGED {
        changed["settings"][name] = json!(value);
        changed["origins"][name] = json!("tenant");
    }
    changed
}

fn answer(settings: &TenantSettings) -> Result<Response, Error> {
    let etag = HeaderValue::try_from(settings.etag()).map_err(|_| Error::internal())?;
    Ok(([(ETAG, etag)], Json(Settings::from(settings))).into_response())
}

/// The validators of a conditional request; none without such a header.
pub fn validators(headers: &HeaderMap, name: HeaderName) -> Option<IfMatch> {
    let mut fields = headers.get_all(&name).iter().peekable();
    fields.peek()?;
    let texts = fields.filter_map(|field| field.to_str().ok());
    let tags = texts.flat_map(|text| text.split(',')).map(str::trim);
    // what a proxy has weakened is still known, though not enough to change something by it
    let tag = |tag: &str| match tag.strip_prefix("W/") {
        Some(weak) if name == IF_NONE_MATCH => weak.to_owned(),
        _ => tag.to_owned(),
    };
    let tags: Vec<String> = tags.map(tag).collect();
    Some(if tags == ["*"] { IfMatch::Any } else { IfMatch::OneOf(tags) })
}

/// Describe the settings
///
/// Returns the settings of the token's tenant: the effective values, their origins, and their
/// maxima.
#[utoipa::path(get, path = "/v1/settings", operation_id = "get_settings", tag = "settings",
    params(("If-None-Match" = Option<String>, Header,
        description = "An `ETag`: answers 304 if it is still current")),
    responses(
        (status = 200, description = "The settings", body = Settings,
            headers(("ETag" = String, description = "Changes with every update")),
            example = json!(example())),
        (status = 304, description = "`If-None-Match` has the current ETag")),
    security(("bearer" = ["admin"])))]
pub async fn get_settings(
    access: Access<Admin>,
    _: AnswersJson,
    _: Query<NoParameters>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let settings = access.broker.settings(access.tenant).await?;
    let mut response = answer(&settings)?;
    if validators(&headers, IF_NONE_MATCH).is_some_and(|known| known.holds(&settings.etag())) {
        let etag = response.headers_mut().remove(ETAG);
        response = StatusCode::NOT_MODIFIED.into_response();
        response.headers_mut().extend(etag.map(|etag| (ETAG, etag)));
    }
    Ok(response)
}

/// Change the settings
///
/// Changes the settings of the token's tenant by a merge patch: absent settings stay, `"default"`
/// removes the tenant's own value, null means unlimited where the setting allows it. The patch is
/// applied completely or not at all, and takes effect within a second. No value may exceed its
/// maximum in `maxima`, which is the operator's or else the server's. The token needs `admin` for
/// all topics: a scope restricted to some topics is not enough.
#[utoipa::path(patch, path = "/v1/settings", operation_id = "patch_settings", tag = "settings",
    params(("If-Match" = Option<String>, Header,
        description = "An `ETag`, or `*`: change only if it is current")),
    request_body(content = SettingsPatch, description = "The changes",
        example = json!(changes_example())),
    responses(
        (status = 200, description = "The settings after the change", body = Settings,
            headers(("ETag" = String, description = "Changes with every update")),
            example = json!(changed_example()))),
    security(("bearer" = ["admin"])))]
pub async fn patch_settings(
    access: TenantAccess<Admin>,
    _: AnswersJson,
    headers: HeaderMap,
    sent: JsonBody<SentChanges>,
) -> Result<Response, Error> {
    let mut errors = ValidationErrors::default();
    let changes = sent.body.checked("", false, &mut errors);
    errors.finish()?;
    let if_match = validators(&headers, IF_MATCH);
    answer(&access.broker.patch_settings(access.tenant, changes, if_match).await?)
}
