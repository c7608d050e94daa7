//! Assigns the partitions of a group to its members. Every partition that somebody subscribes to
//! gets one owner; of all possible assignments the rule takes one that is
//!
//! 1. balanced: no chain of moves, each to a member that subscribes to what it is given, brings two
//!    counts nearer that are two or more apart. With equal subscriptions counts differ by at most
//!    one. (An optimal semi-matching: Harvey, Ladner, Lovász, Tamir 2003.)
//! 2. sticky: of all that are balanced, one in which the fewest partitions leave a holder that may
//!    keep them (KIP-54), exactly, whatever the subscriptions. What stays is read on without a
//!    pause (KIP-429), so a balanced assignment stays as it is.
//!
//! Both at once are a flow of least cost from partitions to members. Partitions that the same
//! members subscribe to are alike but for their holders, so they flow as one pool:
//!
//! ```text
//! pool -- share --> member    a member's n-th partition costs n, before all else;
//!      <-- back ---           one more than it holds costs a move, regained on the way back
//! ```
//!
//! Each partition in turn goes to the member with the fewest of all that a chain of shares reaches,
//! along the chain with the fewest moves (successive shortest paths, many in a round). Members in
//! reach have equal counts or one more, so a higher count means fewer of them: all rounds together
//! cost about partitions x pools, not partitions x members.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque},
};

use crate::model::{LogId, Name, Partition};

/// A member, with the topics it subscribes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscriber {
    pub member_id: String,
    pub topics: BTreeSet<Name>,
}

/// A partition to assign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    pub log_id: LogId,
    pub topic: &'a Name,
    pub partition: Partition,
    /// The holder by the newest assignment, or else the current owner. None: nobody, or a former
    /// member.
    pub holder: Option<&'a str>,
}

/// Returns the new owner of each partition, in the order of `pieces`; None if nobody subscribes to
/// its topic. The order of the inputs does not matter; ties are broken by name.
pub fn assign<'a>(subscribers: &'a [Subscriber], pieces: &[Piece<'_>]) -> Vec<Option<&'a str>> {
    let mut members: Vec<&Subscriber> = subscribers.iter().collect();
    members.sort_by(|one, other| one.member_id.cmp(&other.member_id));
    let place = |id: &str| members.binary_search_by(|member| member.member_id.as_str().cmp(id));
    let holders: Vec<_> = pieces.iter().map(|piece| place(piece.holder?).ok()).collect();
    let pools = pools(&members, pieces);
    let mut flow = Flow::new(&pools, members.len(), &holders);
    flow.run();
    let mut owners = vec![None; pieces.len()];
    for (index, pool) in pools.iter().enumerate() {
        deal(pool, flow.given(index), pieces, &holders, &mut owners);
    }
    let member_id = |index: usize| members[index].member_id.as_str();
    owners.into_iter().map(|owner| owner.map(member_id)).collect()
}

/// Partitions with the same subscribers.
struct Pool {
    /// Indexes of pieces, by topic and partition.
    pieces: Vec<usize>,
    /// Indexes of members, ascending.
    readers: Vec<usize>,
}

/// Groups the partitions into pools by their subscribers. Members with equal subscriptions are
/// evaluated once: a pattern may cover as many topics as there are partitions.
fn pools(members: &[&Subscriber], pieces: &[Piece<'_>]) -> Vec<Pool> {
    let mut alike: BTreeMap<&BTreeSet<Name>, Vec<usize>> = BTreeMap::new();
    for (index, member) in members.iter().enumerate() {
        alike.entry(&member.topics).or_default().push(index);
    }
    let mut topics: BTreeMap<&Name, Vec<usize>> = BTreeMap::new();
    for (index, piece) in pieces.iter().enumerate() {
        topics.entry(piece.topic).or_default().push(index);
    }
    let alike: Vec<_> = alike.into_iter().collect();
    let mut pools: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
    for (topic, mut of_topic) in topics {
        let subscribed = (0..alike.len()).filter(|index| alike[*index].0.contains(topic)).collect();
        of_topic.sort_by_key(|index| (pieces[*index].partition, pieces[*index].log_id));
        pools.entry(subscribed).or_default().extend(of_topic);
    }
    pools.remove(&Vec::new());
    let pool = |(subscribed, pieces): (Vec<usize>, _)| {
        let mut readers: Vec<_> =
            subscribed.iter().flat_map(|index| &alike[*index].1).copied().collect();
        readers.sort_unstable();
        Pool { pieces, readers }
    };
    pools.into_iter().map(pool).collect()
}

/// The share of a member in a pool.
struct Share {
    pool: usize,
    /// The node of the member.
    member: usize,
    held: usize,
    given: usize,
}

/// Nodes are the pools and behind them the members.
struct Flow {
    pool_count: usize,
    shares: Vec<Share>,
    /// The shares at each node; of a pool in the order of its readers.
    edges: Vec<Vec<usize>>,
    /// For each pool, what is not assigned yet; for each member, what it is assigned.
    count: Vec<usize>,
    /// Pools with unassigned partitions.
    open: Vec<usize>,
    /// The fewest moves by which an unassigned partition reaches each node. It never falls, and a
    /// node out of reach stays so.
    price: Vec<i64>,
}

/// The state of the depth-first search of a round.
struct Walk {
    /// The first edge of each node that may still lead somewhere.
    next: Vec<usize>,
    /// Whether the node is on the current path, or a dead end.
    seen: Vec<bool>,
}

impl Flow {
    fn new(pools: &[Pool], member_count: usize, holders: &[Option<usize>]) -> Self {
        let pool_count = pools.len();
        let mut shares = Vec::new();
        let mut edges = vec![Vec::new(); pool_count + member_count];
        let mut count = vec![0; pool_count + member_count];
        for (pool, Pool { pieces, readers }) in pools.iter().enumerate() {
            let first = shares.len();
            for member in readers.iter().map(|reader| pool_count + reader) {
                edges[pool].push(shares.len());
                edges[member].push(shares.len());
                shares.push(Share { pool, member, held: 0, given: 0 });
            }
            for holder in pieces.iter().filter_map(|piece| holders[*piece]) {
                if let Ok(place) = readers.binary_search(&holder) {
                    shares[first + place].held += 1;
                }
            }
            count[pool] = pieces.len();
        }
        let (open, price) = ((0..pool_count).collect(), vec![0; edges.len()]);
        Self { pool_count, shares, edges, count, open, price }
    }

    /// How many partitions of a pool each of its readers gets.
    fn given(&self, pool: usize) -> impl Iterator<Item = usize> {
        self.edges[pool].iter().map(|share| self.shares[*share].given)
    }

    /// Assigns everything. A round serves the members in reach with the lowest count and the fewest
    /// moves; always one, if not all.
    fn run(&mut self) {
        loop {
            let reached = self.reprice();
            let members = reached.into_iter().filter(|node| *node >= self.pool_count);
            let Some(goal) = members.map(|node| self.rank(node)).min() else { return };
            let nodes = self.edges.len();
            let mut walk = Walk { next: vec![0; nodes], seen: vec![false; nodes] };
            for pool in self.open.clone() {
                // at a lower price it is better reached from another
                while self.price[pool] == 0 && self.count[pool] > 0 {
                    let Some(path) = self.path(pool, goal, &mut walk) else { break };
                    self.push(pool, &path);
                }
            }
            self.open.retain(|pool| self.count[*pool] > 0);
        }
    }

    fn rank(&self, member: usize) -> (usize, i64) {
        (self.count[member], self.price[member])
    }

    /// Follows a share from one of its ends: the other end, and the additional moves. None if
    /// nothing was assigned that could be returned.
    fn step(&self, from: usize, share: usize) -> Option<(usize, i64)> {
        let Share { pool, member, held, given } = self.shares[share];
        if from == pool {
            Some((member, i64::from(given >= held)))
        } else {
            (given > 0).then(|| (pool, -i64::from(given > held)))
        }
    }

    /// Sets the price of every node in reach and returns them. Dijkstra's search uses the increase
    /// of prices, because steps that undo a move have negative cost.
    fn reprice(&mut self) -> Vec<usize> {
        let mut reached = Vec::new();
        let mut is_reached = vec![false; self.edges.len()];
        let rises = self.open.iter().map(|pool| Reverse((-self.price[*pool], *pool)));
        let mut queue: BinaryHeap<_> = rises.collect();
        while let Some(Reverse((rise, node))) = queue.pop() {
            if is_reached[node] {
                continue;
            }
            is_reached[node] = true;
            reached.push(node);
            self.price[node] += rise;
            for share in &self.edges[node] {
                if let Some((to, moves)) = self.step(node, *share)
                    && !is_reached[to]
                {
                    queue.push(Reverse((self.price[node] + moves - self.price[to], to)));
                }
            }
        }
        reached
    }

    /// Finds a chain of shares from a pool to a member of that rank without detours; returns its
    /// start and end.
    fn path(
        &self,
        pool: usize,
        goal: (usize, i64),
        walk: &mut Walk,
    ) -> Option<Vec<(usize, usize)>> {
        let (mut node, mut path) = (pool, Vec::new());
        loop {
            walk.seen[node] = true;
            if node >= self.pool_count && self.rank(node) == goal {
                walk.seen[node] = false;
                path.iter().for_each(|(from, _)| walk.seen[*from] = false);
                return Some(path);
            }
            match self.onward(node, walk) {
                Some((share, to)) => {
                    path.push((node, share));
                    node = to;
                }
                None => (node, _) = path.pop()?,
            }
        }
    }

    /// The share to try next from a node, and where it leads.
    fn onward(&self, node: usize, walk: &mut Walk) -> Option<(usize, usize)> {
        while let Some(share) = self.edges[node].get(walk.next[node]) {
            if let Some((to, moves)) = self.step(node, *share)
                && self.price[to] == self.price[node] + moves
                && !walk.seen[to]
            {
                return Some((*share, to));
            }
            walk.next[node] += 1;
        }
        None
    }

    /// Assigns one partition of a pool, along a path.
    fn push(&mut self, pool: usize, path: &[(usize, usize)]) {
        self.count[pool] -= 1;
        for (from, share) in path {
            let share = &mut self.shares[*share];
            if *from == share.pool { share.given += 1 } else { share.given -= 1 }
        }
        if let Some((_, last)) = path.last() {
            self.count[self.shares[*last].member] += 1;
        }
    }
}

/// Picks the partitions of a pool for each reader, by how many it gets. Partitions of the same
/// topic go to different members where that costs nothing.
fn deal(
    pool: &Pool,
    given: impl Iterator<Item = usize>,
    pieces: &[Piece<'_>],
    holders: &[Option<usize>],
    owners: &mut [Option<usize>],
) {
    let mut left: BTreeMap<usize, usize> = pool.readers.iter().copied().zip(given).collect();
    // by number: a holder lets go of something of each topic
    let mut kept_first = pool.pieces.clone();
    kept_first.sort_by_key(|piece| pieces[*piece].partition);
    for piece in kept_first {
        if let Some(holder) = holders[piece]
            && let Some(left) = left.get_mut(&holder)
            && *left > 0
        {
            *left -= 1;
            owners[piece] = Some(holder);
        }
    }
    let mut takers: VecDeque<_> = left.into_iter().filter(|(_, left)| *left > 0).collect();
    let free: Vec<_> = pool.pieces.iter().filter(|piece| owners[**piece].is_none()).collect();
    for piece in free {
        let Some((member, left)) = takers.pop_front() else { break };
        owners[*piece] = Some(member);
        if left > 1 {
            takers.push_back((member, left - 1));
        }
    }
}
