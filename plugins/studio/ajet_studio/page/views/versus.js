export async function versusView(page) { page.named('versus'); throw new Error('not yet'); }
