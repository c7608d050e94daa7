//! Cursors of groups as commits take them: each of its positions is claimed by the ownership in
//! which it was fetched, so one of a partition that was lost meanwhile, or lost and got back, is
//! refused.

use super::{Broker, Error};
use crate::{
    model::{
        Code, Name, TenantId,
        cursor::{GroupCursor, Position},
        group::Member,
    },
    rules::Refusal,
};

impl Broker {
    /// The positions of a member's cursor. `pointer`: where it was sent.
    pub(super) async fn positions(
        &self,
        tenant: TenantId,
        group: &Name,
        member: &Member,
        cursor: &str,
        pointer: &str,
    ) -> Result<Vec<Position>, Error> {
        let parse = |group_id| GroupCursor::parse(cursor, tenant, group_id);
        let will_do = |id, newest| parse(id).is_some() && member.generation <= newest;
        let found = self.group_ids.find(tenant, group, will_do).await?;
        let parsed = found.and_then(|(id, newest)| Some((parse(id)?, newest)));
        let Some((GroupCursor { positions, .. }, generation)) = parsed else {
            let detail = format!("{pointer}: this is no cursor of a fetch of group {group}.");
            return Err(Error::new(Code::InvalidCursor, detail));
        };
        let is_later = |position: &Position| position.owned_since > member.generation;
        if member.generation > generation || positions.iter().any(is_later) {
            return Err(Refusal::IllegalGeneration { generation }.into());
        }
        Ok(positions)
    }
}
