//! Who sent a request, once that is known: the layers around the routes count by it.

use std::sync::{Arc, OnceLock};

use axum::http::Extensions;

use crate::model::TenantId;

/// The tenant of a request, known once it is permitted. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Caller(Arc<OnceLock<TenantId>>);

impl Caller {
    /// That of a request; nobody, if no connection is behind it.
    pub fn of(extensions: &Extensions) -> Self {
        extensions.get().cloned().unwrap_or_default()
    }

    /// None: nobody has been admitted.
    pub fn tenant(&self) -> Option<TenantId> {
        self.0.get().copied()
    }

    pub(super) fn is(&self, tenant: TenantId) {
        let _ = self.0.set(tenant);
    }
}
