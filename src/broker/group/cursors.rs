//! Group cursors in commits: each position is bound to the ownership in which it was fetched, so
//! the position of a partition that was lost since, even if the member got it back, is refused.

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
    /// Parses a member's cursor. `pointer` is where it was sent.
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
            let detail = format!("{pointer}: this is not a cursor from a fetch of group {group}.");
            return Err(Error::new(Code::InvalidCursor, detail));
        };
        let is_later = |position: &Position| position.owned_since > member.generation;
        if member.generation > generation || cursor.positions.iter().any(is_later) {
            return Err(Refusal::IllegalGeneration { generation }.into());
        }
        Ok(cursor)
    }

    /// After a member has committed a cursor: releases the partitions that the cursor's answer
    /// revoked.
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
