// SPDX-License-Identifier: Apache-2.0
// What leaves libcohort.so: everything else is hidden.
#pragma once

#define COHORT_API __attribute__((visibility("default")))
