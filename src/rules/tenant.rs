//! Tenants: whether their requests are served, and how an operator's patch changes one.

use super::Refusal;
use crate::model::{
    settings::{IfMatch, Maxima},
    tenant::{MaximaChanges, Tenant, TenantPatch},
};

/// Whether requests of the tenant are served.
pub fn admit(tenant: &Tenant) -> Result<(), Refusal> {
    is_there(tenant)?;
    if tenant.suspended_at.is_some() {
        return Err(Refusal::TenantSuspended { tenant: tenant.name.clone() });
    }
    Ok(())
}

/// Whether the tenant can still be changed: nothing is created in a tenant that is being deleted.
pub fn is_there(tenant: &Tenant) -> Result<(), Refusal> {
    if tenant.deleted_at.is_some() {
        return Err(Refusal::TenantDeleted { tenant: tenant.name.clone() });
    }
    Ok(())
}

/// The maxima and the suspension of a tenant after an operator's patch of its locked row.
pub fn patch(
    tenant: &Tenant,
    patch: &TenantPatch,
    if_match: Option<&IfMatch>,
) -> Result<(Maxima, bool), Refusal> {
    is_there(tenant)?;
    let etag = tenant.etag();
    if if_match.is_some_and(|wanted| !wanted.holds(&etag)) {
        return Err(Refusal::PreconditionFailed { etag });
    }
    let suspended = patch.suspended.unwrap_or(tenant.suspended_at.is_some());
    Ok((patched(&tenant.settings.maxima, &patch.maxima), suspended))
}

/// Maxima after a merge patch.
pub fn patched(maxima: &Maxima, changes: &MaximaChanges) -> Maxima {
    let mut maxima = maxima.clone();
    for (key, most) in changes {
        match most {
            Some(most) => maxima.0.insert(*key, *most),
            None => maxima.0.remove(key),
        };
    }
    maxima
}
