// SPDX-License-Identifier: Apache-2.0
// The program whose precompiled header the tests share.
int main() { return 0; }
