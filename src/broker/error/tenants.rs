//! What is refused of tenants and of their settings.

use crate::{
    broker::Error,
    model::{
        Code, Fault, Invalid, Name,
        settings::{Key, Value},
    },
};

impl Error {
    /// `at`: where the settings are in the body.
    pub fn above_maxima(at: &str, settings: &[(Key, Value, i64)]) -> Self {
        let fault = |(key, value, maximum): &(Key, Value, i64)| {
            let why = format!("{value} is above {maximum}, the operator's maximum for this tenant");
            Fault::new(format!("{at}/{}", key.name()), why)
        };
        Invalid::of(settings.iter().map(fault)).into()
    }

    pub(super) fn tenant_suspended(tenant: &Name) -> Self {
        let detail = format!(
            "Tenant {tenant} is suspended: an operator has to resume it before anything of it is \
             served."
        );
        Self::new(Code::Forbidden, detail)
    }

    pub(super) fn tenant_deleted(tenant: &Name) -> Self {
        let detail = format!(
            "Tenant {tenant} is deleted: what it had is being removed. Its name is free after that."
        );
        Self::new(Code::TenantNotFound, detail)
    }
}
