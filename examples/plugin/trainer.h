// SPDX-License-Identifier: Apache-2.0
// The interface of the plugin for the program that loads it: plain C, so that neither LibTorch nor
// Cohort is seen in there.
#pragma once

extern "C" {

struct TrainerThrows {
  long count;
  const float* angle_and_speed;  // count x 2: radians, metres a second
  const float* is_hit;           // count: 1 or 0
};
struct TrainerResult {
  double accuracy;  // on the last fifth of the throws
  int is_chief;     // 0: this task served others, and has no result
};

// Trains on the cluster that TF_CONFIG describes. Returns the exit code of the task.
__attribute__((visibility("default"))) int trainer_run(const TrainerThrows* throws,
                                                       TrainerResult* result);
}
