// SPDX-License-Identifier: Apache-2.0
// The source of a target that has none of its own: a module of headers alone, and the shared
// library, which is made of the modules' objects.
