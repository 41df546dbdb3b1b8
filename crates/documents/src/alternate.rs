//! The order of turns, the same for every program that measures.

/// Rounds whose times are thrown away: the first ones load kernels and fill caches.
pub const WARM_UP: usize = 2;

/// Lets all ways take turns: forwards in one round, backwards in the next, so that a drift meets the
/// first and the last alike. `turn` measures the way of an index; the turns of the first `warm_up`
/// rounds are thrown away. Returns for each way its turns, one a round.
pub fn alternate<T, E>(
    ways: usize,
    warm_up: usize,
    rounds: usize,
    mut turn: impl FnMut(usize) -> Result<T, E>,
) -> Result<Vec<Vec<T>>, E> {
    let mut all: Vec<Vec<T>> = (0..ways).map(|_| Vec::with_capacity(rounds)).collect();
    for round in 0..warm_up + rounds {
        for at in 0..ways {
            let way = if round % 2 == 0 { at } else { ways - 1 - at };
            let turn = turn(way)?;
            if round >= warm_up {
                all[way].push(turn);
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_take_turns_and_a_drift_cancels() {
        let mut order = Vec::new();
        let mut clock = 0.0;
        let all = alternate(2, 2, 4, |way| {
            order.push(way);
            clock += 1.0;
            Ok::<_, ()>(clock)
        })
        .unwrap();
        assert_eq!(order, [0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0]);
        assert_eq!(all[0].len(), 4);
        assert_eq!(all[0].iter().sum::<f64>(), all[1].iter().sum::<f64>());
    }
}
