/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where log lines go: to the journal with a MESSAGE_ID for what an operator can meet (see
 * systemd/dedit.catalog), or "<n>topic: text" on standard error.  Lines that peers can cause are
 * limited in rate.
 */
#pragma once

/* Chooses by JOURNAL_STREAM: standard error is the journal's. */
void journal_init(void);
