export async function episodeView(page) { page.named('episode'); throw new Error('not yet'); }
