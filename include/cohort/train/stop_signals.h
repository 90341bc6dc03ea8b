// SPDX-License-Identifier: Apache-2.0
// Signals by which a training is asked to stop: it saves and ends, and its next start goes on.
//
//   StopSignals signals;
//   while (step < steps) {
//     train(step++);
//     if (signals.agreed(strategy)) {
//       save(step);
//       return signals.exit_code();
//     }
//   }
#pragma once

#include <memory>

#include "cohort/core/export.h"

namespace cohort {

class Strategy;  // strategy/strategy.h

// While it exists, the first SIGTERM or SIGINT of this process is noted, and another one of either,
// at least a quarter of a second later, ends the process as their default action does. (One that
// comes sooner is the same request, sent to the process and to its group, or passed on by `cohort
// launch`.) A signal that the process ignores stays ignored.
// The library handles no signals otherwise. tf.distribute's PreemptionCheckpointHandler is similar.
//
// Thread-safe. A program makes one in main(). When it ends, the handlers from before it are back,
// also in place of those that the program has set meanwhile.
class COHORT_API StopSignals {
 public:
  // Throws failed_precondition while another one exists.
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Whether this process has got a signal. With several workers, others may not have: see agreed().
  bool requested() const;
  // SIGTERM or SIGINT; 0: none so far.
  int signal() const;
  // EX_TEMPFAIL of sysexits.h, 75: whoever started the program shall start it again.
  int exit_code() const;

  // Whether a worker of the strategy has got a signal. With several workers, all make this call at
  // the same point of each step, and all get true in the same one. The flag travels with the sums
  // of gradients that minimize() makes, in the step after the signal, and so costs no message. If
  // no gradients were summed since the call before, or only those of the first step of their kind,
  // this call is a message to all workers.
  //
  // With other strategies it is requested(); on parameter servers the coordinator decides alone.
  // Throws failed_precondition in a replica and in a step that is traced; with several workers as
  // Strategy::reduce() does if they do not make the same calls, or if one is lost.
  bool agreed(Strategy& strategy) const;

 private:
  class Scope;
  std::unique_ptr<Scope> scope_;
};

}  // namespace cohort
