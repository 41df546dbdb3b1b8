//! Generation: what follows a text.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::model::{Reader, likeliest};
use crate::tokens::Tokens;

/// How a token is chosen.
#[derive(Clone, Debug)]
pub struct Sampling {
    /// 0: always the most probable token.
    pub temperature: f32,
    /// The most probable tokens with this much probability together are the choice.
    pub top_p: f32,
    /// Of the random numbers.
    pub seed: u64,
}

/// Times of a generation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    pub read: usize,
    pub reading: Duration,
    pub written: usize,
    pub writing: Duration,
    /// Tokens that were guessed, and how many of the guesses were right.
    pub drafted: usize,
    pub accepted: usize,
}

/// A model that writes.
pub struct Generator<'a> {
    pub model: &'a mut dyn Reader,
    pub tokens: &'a Tokens,
    pub sampling: Sampling,
    /// Tokens that are guessed a step from the text before, and checked at once: 0 for none. Only the most probable
    /// tokens can be guessed.
    pub draft: usize,
}

impl Generator<'_> {
    /// Reads a text and writes up to `most` tokens. `said` gets pieces of the answer as they come. Returns the answer's
    /// tokens, and the times.
    pub fn answer(
        &mut self,
        text: &[u32],
        most: usize,
        mut said: impl FnMut(&str),
    ) -> Result<(Vec<u32>, Times)> {
        let mut random = fastrand::Rng::with_seed(self.sampling.seed);
        let mut times = Times {
            read: text.len(),
            ..Times::default()
        };
        let start = Instant::now();
        let logits = self.model.read(text)?;
        times.reading = start.elapsed();
        let (mut answer, mut shown) = (Vec::new(), 0);
        let mut next = self.sampling.choose(logits, &mut random)?;
        let start = Instant::now();
        while answer.len() < most && !self.tokens.is_end(next) {
            // No more than the text and the answer have room for.
            let room = self.model.room().min(most - answer.len()).saturating_sub(1);
            let guesses = match self.sampling.temperature == 0.0 {
                true => guesses(&[text, &answer[..], &[next]].concat(), self.draft.min(room)),
                false => Vec::new(),
            };
            times.drafted += guesses.len();
            let position = self.model.position();
            let step = [&[next], &guesses[..]].concat();
            // Of the most probable tokens no logits are needed. With others there are no guesses.
            let choices = match self.sampling.temperature == 0.0 {
                true => self.model.likeliest(&step)?,
                false => vec![
                    self.sampling
                        .choose(self.model.read_all(&step)?, &mut random)?,
                ],
            };
            let mut read = 0;
            for (i, choice) in choices.into_iter().enumerate() {
                answer.push(step[i]);
                read = i + 1;
                next = choice;
                let is_right = guesses.get(i) == Some(&next);
                if !is_right || answer.len() == most || self.tokens.is_end(next) {
                    break;
                }
                times.accepted += 1;
            }
            if read < step.len() {
                self.model.truncate(position + read)?;
            }
            let text = self.tokens.decode(&answer)?;
            // A character may need more tokens.
            if !text.ends_with('\u{fffd}') && text.is_char_boundary(shown) {
                said(&text[shown..]);
                shown = text.len();
            }
        }
        times.written = answer.len();
        times.writing = start.elapsed();
        Ok((answer, times))
    }
}

/// The tokens that followed the last two when these stood in the text before: up to `most` tokens.
fn guesses(text: &[u32], most: usize) -> Vec<u32> {
    let Some((last, before)) = text
        .split_last_chunk::<2>()
        .map(|(text, last)| (last, text))
    else {
        return Vec::new();
    };
    let windows = before.windows(2).rposition(|two| two == last);
    let Some(at) = windows.filter(|_| most > 0) else {
        return Vec::new();
    };
    text[at + 2..].iter().copied().take(most).collect()
}

impl Sampling {
    /// A token by its logits.
    fn choose(&self, logits: &[f32], random: &mut fastrand::Rng) -> Result<u32> {
        let best = likeliest(logits)?;
        if self.temperature <= 0.0 {
            return Ok(best);
        }
        let most = logits[best as usize];
        let share = |logit: &f32| ((logit - most) / self.temperature).exp();
        let mut shares: Vec<(usize, f32)> = logits.iter().map(share).enumerate().collect();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let all: f32 = shares.iter().map(|(_, share)| share).sum();
        let mut sum = 0.0;
        let wanted = shares.iter().position(|(_, share)| {
            sum += share;
            sum >= all * self.top_p
        });
        shares.truncate(wanted.map_or(shares.len(), |last| last + 1));
        let mut at = random.f32() * shares.iter().map(|(_, share)| share).sum::<f32>();
        for (token, share) in &shares {
            at -= share;
            if at <= 0.0 {
                return Ok(*token as u32);
            }
        }
        Ok(shares.last().map_or(best, |(token, _)| *token as u32))
    }
}
