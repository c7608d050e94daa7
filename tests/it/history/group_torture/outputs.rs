//! What the transactional group has made of its inputs.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use serde_json::Value;

use super::{At, OUTPUTS, World, inputs};

/// One output for each input, those of one input partition in its order.
pub async fn judge(world: &World, rng: &mut StdRng, inputs: &BTreeMap<At, Vec<Value>>) {
    let mut outputs: BTreeMap<At, Vec<Value>> = BTreeMap::new();
    for partition in 0..3 {
        for output in inputs::read(world, rng, OUTPUTS, partition).await {
            let topic = output["topic"].as_str().unwrap().to_owned();
            let at = (topic, output["partition"].as_i64().unwrap() as i32);
            let of = outputs.entry(at).or_default();
            assert_eq!(output["offset"], of.len(), "{output}: twice, skipped or out of order");
            of.push(output["value"].clone());
        }
    }
    for (at, values) in inputs.iter().filter(|(_, values)| !values.is_empty()) {
        assert_eq!(outputs.get(at), Some(values), "{at:?}");
    }
}
