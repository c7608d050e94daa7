//! Cursors of groups as commits take them: each of its positions is claimed by the ownership in
//! which it was fetched, so one of a partition that was lost meanwhile, or lost and got back, is
//! refused.

use crate::{
    broker::{Broker, Error},
    model::{
        Code, Name, TenantId,
        cursor::{GroupCursor, Position},
        group::Member,
    },
    rules::Refusal,
};

impl Broker {
    /// A member's cursor. `pointer`: where it was sent.
    pub(in crate::broker) async fn cursor(
        &self,
        tenant: TenantId,
        group: &Name,
        member: &Member,
        cursor: &str,
        pointer: &str,
    ) -> Result<GroupCursor, Error> {
        let parse = |group_id| GroupCursor::parse(cursor, tenant, group_id);
        // nothing is written by one of no partition that would find a group deleted since
        let names_any = |cursor: &GroupCursor| !cursor.positions.is_empty();
        let will_do =
            |id, newest| parse(id).as_ref().is_some_and(names_any) && member.generation <= newest;
        let found = self.group_ids.find(tenant, group, will_do).await?;
        let parsed = found.and_then(|(id, newest)| Some((parse(id)?, newest)));
        let Some((cursor, generation)) = parsed else {
            let detail = format!("{pointer}: this is no cursor of a fetch of group {group}.");
            return Err(Error::new(Code::InvalidCursor, detail));
        };
        let is_later = |position: &Position| position.owned_since > member.generation;
        if member.generation > generation || cursor.positions.iter().any(is_later) {
            return Err(Refusal::IllegalGeneration { generation }.into());
        }
        Ok(cursor)
    }

    /// A member has committed a cursor: it lets go of what the answer that it shows has told it to.
    pub(in crate::broker) async fn let_go_with(
        &self,
        tenant: TenantId,
        group: &Name,
        member: &Member,
        cursor: &str,
    ) {
        let cursor = self.cursor(tenant, group, member, cursor, "/cursor").await;
        if let Ok(GroupCursor { told: Some(shown), .. }) = cursor {
            self.let_go(tenant, group, &member.member_id, shown).await;
        }
    }
}
