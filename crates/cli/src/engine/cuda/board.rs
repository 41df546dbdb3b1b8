//! Readings of the board while it is measured: clock, power, energy, and whether a limit holds it back.
//!
//! The NVIDIA Management Library (NVML) comes with the driver and is loaded when a device is opened. If NVML is
//! missing, or does not know an answer, the figure is missing too. Nothing is measured differently then, but turns that
//! a limit slowed down are not noticed.

use std::cell::Cell;
use std::time::Duration;

use cudarc::driver::CudaContext;
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::NVML_FI_DEV_POWER_INSTANT;

/// One device, as NVML sees it.
#[derive(Debug)]
pub(super) struct Board {
    /// NVML, or why it is not there.
    nvml: Result<Nvml, String>,
    /// UUID of the GPU, as NVML writes it.
    uuid: String,
    /// The highest clock of the multiprocessors that this process saw, in MHz. A board that is hot from the start
    /// is therefore not noticed.
    highest_mhz: Cell<u32>,
    /// Turns in a row that were held back for all that was waited.
    in_vain: Cell<u32>,
}

/// Readings of a board after a turn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    /// Clock of the multiprocessors.
    pub(super) sm_mhz: Option<f64>,
    /// Power, averaged over what the board averages it over.
    pub(super) watts: Option<f64>,
    limited: bool,
}

/// A clock below this part of the highest one is not the full clock.
const FULL_CLOCK: f64 = 0.97;

/// After so many turns in a row that waiting did not help, nobody waits any more: such a board is always at
/// its limit.
const PATIENCE: u32 = 3;

impl Board {
    pub(super) fn of(context: &CudaContext) -> Self {
        let bytes = context.uuid().map(|uuid| uuid.bytes).unwrap_or_default();
        let hex: String = bytes.iter().map(|b| format!("{:02x}", *b as u8)).collect();
        let parts = [
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..],
        ];
        Self {
            nvml: Nvml::init().map_err(|error| error.to_string()),
            uuid: format!("GPU-{}", parts.join("-")),
            highest_mhz: Cell::new(0),
            in_vain: Cell::new(0),
        }
    }

    fn device(&self) -> Option<nvml_wrapper::Device<'_>> {
        self.nvml.as_ref().ok()?.device_by_uuid(&*self.uuid).ok()
    }

    /// How it is now.
    pub(super) fn state(&self) -> State {
        let Some(device) = self.device() else {
            return State::default();
        };
        let mhz = device.clock_info(Clock::SM).ok();
        let highest = self.highest_mhz.get();
        self.highest_mhz.set(highest.max(mhz.unwrap_or(0)));
        let limits = ThrottleReasons::SW_POWER_CAP
            | ThrottleReasons::HW_SLOWDOWN
            | ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN
            | ThrottleReasons::HW_THERMAL_SLOWDOWN
            | ThrottleReasons::SW_THERMAL_SLOWDOWN;
        let reasons = device.current_throttle_reasons();
        State {
            sm_mhz: mhz.map(f64::from),
            watts: watts(&device),
            limited: reasons.is_ok_and(|reasons| reasons.intersects(limits)),
        }
    }

    /// Reasons why figures of power and energy are missing, a sentence each.
    pub(super) fn energy_notes(&self) -> Vec<String> {
        let missing = |why: &str| vec![format!("no watts, clock and energy: {why}")];
        match (&self.nvml, self.device()) {
            (Err(why), _) => missing(&format!(
                "the driver's management library (NVML) was not loaded: {why}"
            )),
            (Ok(_), None) => {
                missing("the driver's management library (NVML) does not know the GPU")
            }
            (Ok(_), Some(_)) if self.joules().is_none() => vec![
                "energy: the board does not count it; it is the mean of power samples times time"
                    .into(),
            ],
            (Ok(_), Some(_)) => Vec::new(),
        }
    }

    /// The power alone.
    pub(super) fn watts(&self) -> Option<f64> {
        watts(&self.device()?)
    }

    /// The multiprocessors' clock alone.
    pub(super) fn sm_mhz(&self) -> Option<f64> {
        let mhz = self.device()?.clock_info(Clock::SM).ok();
        mhz.map(f64::from)
    }

    /// Whether a limit of power or temperature had lowered the clock.
    pub(super) fn is_held_back(&self, state: &State) -> bool {
        let full = f64::from(self.highest_mhz.get()) * FULL_CLOCK;
        state.limited && state.sm_mhz.is_some_and(|mhz| mhz < full)
    }

    /// The pauses that may help a turn that was held back: none where they never did.
    pub(super) fn worth_waiting<'a>(&self, pauses: &'a [Duration]) -> &'a [Duration] {
        match self.in_vain.get() < PATIENCE {
            true => pauses,
            false => &[],
        }
    }

    /// Remembers whether a turn was held back in the end.
    pub(super) fn remember(&self, held_back: bool) {
        self.in_vain.set(match held_back {
            true => self.in_vain.get().saturating_add(1),
            false => 0,
        });
    }

    /// The energy that the device has taken since the driver was loaded.
    pub(super) fn joules(&self) -> Option<f64> {
        let millijoules = self.device()?.total_energy_consumption().ok()?;
        Some(millijoules as f64 * 1e-3)
    }
}

/// The energy that a device takes, for commands that have no engine.
#[derive(Debug)]
pub(crate) struct Energy(Board);

impl Energy {
    pub(crate) fn of_device(ordinal: usize) -> Result<Self, nvfp4_gemv::Error> {
        let context = CudaContext::new(ordinal);
        let context = context.map_err(|error| super::cuda("opening a device", error))?;
        Ok(Self(Board::of(&context)))
    }

    /// Energy since the driver was loaded; nothing where the board does not count it.
    pub(crate) fn joules(&self) -> Option<f64> {
        self.0.joules()
    }

    /// Why it is not counted.
    pub(crate) fn why_none(&self) -> String {
        match self.0.device() {
            Some(_) => "the board does not count its energy".into(),
            None => self.0.energy_notes().concat(),
        }
    }
}

/// The power now, or where only an average is known, that.
fn watts(device: &nvml_wrapper::Device<'_>) -> Option<f64> {
    let instant = || {
        let field = [FieldId(NVML_FI_DEV_POWER_INSTANT)];
        let sample = device.field_values_for(&field).ok()?.pop()?.ok()?;
        match sample.value.ok()? {
            SampleValue::U32(milliwatts) => Some(f64::from(milliwatts)),
            SampleValue::U64(milliwatts) => Some(milliwatts as f64),
            _ => None,
        }
    };
    let milliwatts = instant().or_else(|| device.power_usage().ok().map(f64::from));
    milliwatts.map(|milliwatts| milliwatts * 1e-3)
}
