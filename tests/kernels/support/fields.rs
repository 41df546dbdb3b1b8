//! A config's fields by their names, whichever kernel's they are.

use nvfp4_gemv::kernel::Config;
use serde_json::Value;

fn json(config: &Config) -> Value {
    serde_json::to_value(config).expect("JSON")
}

pub(crate) fn get(config: &Config, name: &str) -> u32 {
    let value = &json(config)[config.kernel().name()][name];
    serde_json::from_value(value.clone()).expect("a field that is a number")
}

pub(crate) fn set(config: &mut Config, name: &str, value: u32) {
    let mut json = json(config);
    json[config.kernel().name()][name] = value.into();
    *config = serde_json::from_value(json).expect("a field that is a number");
}
