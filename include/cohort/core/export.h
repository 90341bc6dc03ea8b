// SPDX-License-Identifier: Apache-2.0
// Marks the symbols that libcohort.so exports; all others are hidden.
#pragma once

#define COHORT_API __attribute__((visibility("default")))
