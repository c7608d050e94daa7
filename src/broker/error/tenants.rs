//! Errors about tenants and their settings.

use crate::{
    broker::Error,
    model::{
        Code, Fault, Invalid, Name,
        settings::{Key, Value},
    },
};

impl Error {
    /// `at` is the pointer to the settings in the body.
    pub fn above_maxima(at: &str, settings: &[(Key, Value, i64)]) -> Self {
        let fault = |(key, value, maximum): &(Key, Value, i64)| {
            let why = format!("{value} exceeds {maximum}, the operator's maximum for this tenant");
            Fault::new(format!("{at}/{}", key.name()), why)
        };
        Invalid::of(settings.iter().map(fault)).into()
    }

    pub(super) fn tenant_suspended(tenant: &Name) -> Self {
        let detail = format!(
            "Tenant {tenant} is suspended. Its requests are refused until an operator resumes it."
        );
        Self::new(Code::Forbidden, detail)
    }

    pub(super) fn tenant_deleted(tenant: &Name) -> Self {
        let detail = format!(
            "Tenant {tenant} is deleted and its data is being removed. The name is free \
             afterwards."
        );
        Self::new(Code::TenantNotFound, detail)
    }
}
